/** Constraints against tokenizers of every family: texts of noise are what the constraint says. */
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { allowedIds, sampleNoise } from '../../../test/noise-sampler.ts';
import type { TextConstraint } from '../../core/constraint.ts';
import { DataError } from '../../core/errors.ts';
import { createTokenizer, type Tokenizer } from '../../formats/tokenizer.ts';
import { Grammars } from './grammars.ts';

const folder = new URL('../../../test/fixtures/tokenizers/', import.meta.url);
const families = readdirSync(folder)
  .map((file) => file.replace('.json', ''))
  .filter((name) => !['expected', 'real', 'unicode'].includes(name));

function load(name: string): { tokenizer: Tokenizer; grammars: Grammars; stopIds: number[] } {
  const tokenizer = createTokenizer(JSON.parse(readFileSync(new URL(`${name}.json`, folder), 'utf8')));
  const stopIds = [...tokenizer.specialIds].slice(-1);
  return { tokenizer, grammars: new Grammars(tokenizer, tokenizer.vocabSize), stopIds };
}

const person = {
  type: 'object',
  properties: {
    name: { type: 'string', maxLength: 12 },
    age: { type: 'integer', minimum: 0, maximum: 150 },
    tags: { type: 'array', items: { enum: ['a', 'ü', '日本'] }, maxItems: 3 },
  },
  required: ['name', 'age', 'tags'],
} as const;

test('a text that the vocabulary cannot spell fails as it is reached', async () => {
  const { tokenizer, grammars, stopIds } = load('metaspace');
  expect(tokenizer.tokenId('日')).toBeNull();
  const sampled = sampleNoise(grammars, tokenizer, { type: 'literal', text: 'a日' }, { seed: 1, stopIds });
  await expect(sampled).rejects.toThrow('constraint: must be a text that tokens of the vocabulary spell');
  await expect(sampled).rejects.toBeInstanceOf(DataError);
});

describe.each(families.filter((name) => name !== 'metaspace'))('%s', (name) => {
  const { tokenizer, grammars, stopIds } = load(name);

  test('JSON of a schema, a regular expression, and a tag around free text', async () => {
    for (let seed = 0; seed < 8; seed++) {
      const json = await sampleNoise(grammars, tokenizer, { type: 'jsonSchema', schema: person }, { seed, stopIds });
      expect(json.isEnded).toBe(true);
      const value = JSON.parse(json.text);
      expect(Object.keys(value)).toEqual(['name', 'age', 'tags']);
      expect(Number.isInteger(value.age) && value.age >= 0 && value.age <= 150).toBe(true);
      expect(value.tags.every((tag: string) => ['a', 'ü', '日本'].includes(tag))).toBe(true);
      const pattern = '(ja|nein|vielleicht), [A-Zé-ü]{2,5}[0-9]+\\.';
      const matched = await sampleNoise(grammars, tokenizer, { type: 'regex', pattern }, { seed, stopIds });
      expect(matched.text).toMatch(new RegExp(`^(?:${pattern})$`));
      const tag = {
        type: 'tag',
        begin: '<call>',
        content: { type: 'literal', text: 'f(日)' },
        end: '</call>',
      } as const;
      expect((await sampleNoise(grammars, tokenizer, tag, { seed, stopIds })).text).toBe('<call>f(日)</call>');
    }
  });

  test('special tokens are allowed where the constraint spells them, and nowhere else', async () => {
    const special = [...tokenizer.specialIds].find((id) => tokenizer.tokenText(id).length > 3)!;
    const spelt = await grammars.match({ type: 'literal', text: tokenizer.tokenText(special) }, stopIds);
    expect(allowedIds(spelt.mask)).toContain(special);
    spelt.dispose();
    const free = await grammars.match({ type: 'anyText' }, stopIds);
    const allowed = new Set(allowedIds(free.mask));
    expect([...tokenizer.specialIds].filter((id) => allowed.has(id))).toEqual(stopIds);
    free.dispose();
  });
});

const { tokenizer, grammars, stopIds } = load('smollm2');
const draw = (constraint: TextConstraint, seed: number, maxTokens = 400) =>
  sampleNoise(grammars, tokenizer, constraint, { seed, stopIds, maxTokens });

describe('ends', () => {
  test('stop tokens are allowed exactly where the text may end', async () => {
    const matcher = await grammars.match({ type: 'regex', pattern: 'a|ab' }, stopIds);
    const [a, b] = ['a', 'b'].map((text) => tokenizer.tokenId(text)!);
    const mayStop = (): boolean => allowedIds(matcher.mask).some((id) => stopIds.includes(id));
    expect(mayStop()).toBe(false);
    await matcher.accept(a!);
    expect(mayStop()).toBe(true);
    expect(allowedIds(matcher.mask)).toContain(b);
    await matcher.accept(b!);
    expect(allowedIds(matcher.mask)).toEqual(stopIds);
    expect(matcher.isComplete).toBe(false);
    matcher.dispose();
  });

  test('an ordinary token that is a stop token is forbidden inside the text', async () => {
    const a = tokenizer.tokenId('a')!;
    const matcher = await grammars.match({ type: 'regex', pattern: '[ab]{2}' }, [a]);
    expect(allowedIds(matcher.mask)).not.toContain(a);
    matcher.dispose();
  });

  test('without stop tokens a text that is complete ends by itself', async () => {
    const { text, isEnded } = await sampleNoise(
      grammars,
      tokenizer,
      { type: 'literal', text: 'done' },
      { seed: 1, stopIds: [] },
    );
    expect([text, isEnded]).toEqual(['done', true]);
  });

  test('what the mask forbids is not accepted', async () => {
    const matcher = await grammars.match({ type: 'literal', text: 'abc' }, stopIds);
    await expect(matcher.accept(tokenizer.tokenId('z')!)).rejects.toThrow('constraint: must allow what was sampled');
    matcher.dispose();
  });
});

describe('combinations', () => {
  const call = (name: string, schema: object) =>
    ({
      type: 'tag',
      begin: `<tool:${name}>`,
      content: { type: 'jsonSchema', schema: schema as Record<string, unknown> },
      end: '</tool>',
    }) as const;
  const tags = [
    call('add', { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] }),
    call('now', { type: 'object' }),
  ];

  test('required tags: one, or several with a separator', async () => {
    for (let seed = 0; seed < 10; seed++) {
      const one = await draw(
        { type: 'triggeredTags', triggers: ['<tool:'], tags, isRequired: true, isSingle: true },
        seed,
        900,
      );
      if (one.isEnded) expect(one.text).toMatch(/^<tool:(add|now)>\{.*\}<\/tool>$/s);
      const many = await draw(
        { type: 'separatedTags', tags: [tags[0]!], separator: '\n', isRequired: true, isSingle: false },
        seed,
        900,
      );
      if (many.isEnded)
        for (const line of many.text.split('</tool>\n'))
          expect(line).toMatch(/^<tool:add>\{\s*"a":\s*-?\d+\s*\}(<\/tool>)?$/);
    }
  });

  test('free text in which a trigger begins a tag', async () => {
    const free: TextConstraint = {
      type: 'triggeredTags',
      triggers: ['<tool:'],
      tags,
      isRequired: false,
      isSingle: false,
    };
    const matcher = await grammars.match(free, stopIds);
    for (const id of tokenizer.encode('so <tool:')) await matcher.accept(id);
    const first = allowedIds(matcher.mask).map((id) => tokenizer.tokenText(id)[0]);
    expect(new Set(first)).toEqual(new Set(['a', 'n']));
    matcher.dispose();
  });

  test('a sequence, alternatives, text up to the end of a tag', async () => {
    const constraint: TextConstraint = {
      type: 'sequence',
      parts: [
        { type: 'tag', begin: '<think>', content: { type: 'anyText' }, end: '</think>' },
        {
          type: 'oneOf',
          options: [
            { type: 'literal', text: 'yes' },
            { type: 'literal', text: 'no' },
          ],
        },
      ],
    };
    const matcher = await grammars.match(constraint, stopIds);
    for (const id of tokenizer.encode('<think>no < yes </think>n')) await matcher.accept(id);
    expect(allowedIds(matcher.mask).map((id) => tokenizer.tokenText(id))).toEqual(['o']);
    matcher.dispose();
  });
});

test.each<[string, TextConstraint, RegExp]>([
  ['an empty text', { type: 'literal', text: '' }, /^constraint\.text: must have at least one character/],
  ['no options', { type: 'oneOf', options: [] }, /^constraint\.options: must be at least one/],
  [
    'something after free text',
    { type: 'sequence', parts: [{ type: 'anyText' }, { type: 'literal', text: 'x' }] },
    /^constraint\.parts\.0: must end by itself/,
  ],
  [
    'free text or not',
    { type: 'oneOf', options: [{ type: 'anyText' }, { type: 'literal', text: 'x' }] },
    /^constraint\.options: must all end/,
  ],
  [
    'a tag without end',
    { type: 'tag', begin: '<', content: { type: 'anyText' }, end: '' },
    /^constraint\.end: must have a character/,
  ],
  [
    'a tag without trigger',
    {
      type: 'triggeredTags',
      triggers: ['{'],
      tags: [{ type: 'tag', begin: '<', content: { type: 'anyText' }, end: '>' }],
      isRequired: true,
      isSingle: true,
    },
    /tags\.0\.begin: must begin with exactly one/,
  ],
  [
    'look-ahead',
    { type: 'regex', pattern: '(?=a)b' },
    /^constraint\.pattern: must be a regular expression without look-around.*got \(\?=/,
  ],
  ['a broken expression', { type: 'regex', pattern: '(a' }, /^constraint\.pattern: must be a regular expression, got/],
  ['a false schema', { type: 'jsonSchema', schema: false }, /^constraint\.schema: must admit some value/],
  ['an unknown type', { type: 'xml' } as never, /^constraint\.type: must be a known constraint, got xml/],
  ['a large schema', { type: 'jsonSchema', schema: { description: 'x'.repeat(70_000) } }, /at most 65536 bytes/],
])('%s is refused by name, and the next constraint works', async (_name, constraint, message) => {
  await expect(grammars.match(constraint, stopIds)).rejects.toThrow(message);
  await expect(grammars.match(constraint, stopIds)).rejects.toBeInstanceOf(DataError);
  expect((await draw({ type: 'literal', text: 'ok' }, 1)).text).toBe('ok');
});

test('what would take sampling from all others is refused: grammars of many parts, and those slow to follow', async () => {
  const { tokenizer, grammars, stopIds } = load('smollm2');
  const properties = Object.fromEntries(Array.from({ length: 2000 }, (_, i) => [`p${i}`, { type: 'integer' }]));
  const startedAt = performance.now();
  const large = grammars.match({ type: 'jsonSchema', schema: { type: 'object', properties } }, stopIds);
  await expect(large).rejects.toThrow(
    /^constraint: its grammar must have at most 1500 parts, got \d{4}; fewer properties/,
  );
  expect(performance.now() - startedAt).toBeLessThan(2_000); // compiled, it takes most of a minute
  const optional = grammars.match({ type: 'regex', pattern: '[a-z]?'.repeat(1000) }, stopIds);
  await expect(optional).rejects.toThrow('constraint: must have at most 200 optional parts in a row, got 1000');
  // Each star may take the next letter, so after a few letters all of them may have taken all of them.
  const slow = { type: 'regex', pattern: '(a|b|ab)*'.repeat(200) } as const;
  const matcher = await grammars.match(slow, stopIds);
  const id = tokenizer.tokenId('a')!;
  const follow = async (): Promise<void> => {
    for (let count = 0; count < 400; count++) await matcher.accept(id);
  };
  const rule = 'constraint: must take at most 30 ms for a token, got ';
  await expect(follow()).rejects.toThrow(rule);
  matcher.dispose();
  await expect(grammars.match(slow, stopIds)).rejects.toThrow(rule);
  expect((await grammars.match({ type: 'literal', text: 'a' }, stopIds)).isComplete).toBe(false);
}, 60_000);

test('compiles leave sampling half of the time', async () => {
  const { grammars, stopIds } = load('smollm2');
  const compile = (name: number): Promise<unknown> =>
    grammars.match({ type: 'regex', pattern: `(w${name}|${'[a-z]?'.repeat(100)})` }, stopIds);
  await compile(0); // with the library's own start
  const startedAt = performance.now();
  await compile(1);
  const alone = performance.now() - startedAt;
  let longest = 0;
  let turnedAt = performance.now();
  const timer = setInterval(() => {
    longest = Math.max(longest, performance.now() - turnedAt);
    turnedAt = performance.now();
  });
  await Promise.all([2, 3, 4, 5, 6, 7, 8, 9].map(compile));
  clearInterval(timer);
  expect(longest).toBeLessThan(4 * alone);
});

test('what nobody waits for any more is not compiled', async () => {
  const { grammars, stopIds } = load('smollm2');
  let isWanted = true;
  const first = grammars.match({ type: 'regex', pattern: 'a' }, stopIds);
  const left = grammars.match({ type: 'regex', pattern: 'b' }, stopIds, () => isWanted);
  const shared = [() => isWanted, () => true].map((wish) =>
    grammars.match({ type: 'regex', pattern: 'c' }, stopIds, wish),
  );
  isWanted = false;
  await first;
  await expect(left).rejects.toThrow('constraint: nobody waits for it any more');
  expect(await Promise.all(shared)).toHaveLength(2);
  await grammars.match({ type: 'regex', pattern: 'b' }, stopIds); // who asks later gets it
});
