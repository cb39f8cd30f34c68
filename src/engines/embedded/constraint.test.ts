/** Constraints, alternatives of prompt tokens and many requests through the real process of the engine. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createTinyModelFolder, type TinyModelFolder } from '../../../test/tiny-model-folder.ts';
import type { TextConstraint } from '../../core/constraint.ts';
import { loadTokenizer, type Tokenizer } from '../../formats/tokenizer.ts';
import { collect, expectIdle, type Sampled, sampleRequest } from '../contract-subject.ts';
import type { Engine, SamplingParams } from '../engine.ts';
import { createEmbeddedEngine } from './engine.ts';

let files: TinyModelFolder;
let engine: Engine;
let tokenizer: Tokenizer;
let end = 0;

beforeAll(async () => {
  files = await createTinyModelFolder({ maxPositions: 320 });
  tokenizer = await loadTokenizer(files.modelDirectory);
  end = tokenizer.eosId!;
  const training = { kind: 'lora', rank: 2, alpha: 4 } as const;
  engine = await createEmbeddedEngine({ modelDirectory: files.modelDirectory, seed: 1, training });
}, 60_000);
afterAll(async () => {
  await engine.close();
  await files.remove();
});

const schema = {
  type: 'object',
  properties: {
    move: { enum: ['up', 'down', 'left'] },
    steps: { type: 'integer', minimum: 1, maximum: 20 },
    why: { type: 'string', maxLength: 10 },
  },
  required: ['move', 'steps', 'why'],
} as const;
const constraints: readonly (TextConstraint | undefined)[] = [
  undefined,
  { type: 'jsonSchema', schema },
  { type: 'regex', pattern: '[a-f]{3,6}(-\\d{2}){1,2}' },
  {
    type: 'tag',
    begin: '<answer>',
    content: { type: 'jsonSchema', schema: { type: 'integer', maximum: 99 } },
    end: '</answer>',
  },
];

function sample(sampling: Partial<SamplingParams>, prompt = 'Where to?'): Promise<Sampled> {
  const promptIds = tokenizer.encode(prompt);
  return collect(engine, sampleRequest({ promptIds }, { maxTokens: 120, stopTokenIds: [end], ...sampling }));
}

const textOf = ({ tokenIds }: Sampled): string => tokenizer.decode(tokenIds.filter((id) => id !== end));

describe('constraints', () => {
  test.each([0, 1])('replies are what each constraint says, temperature %i', async (temperature) => {
    const seeds = temperature === 0 ? [1] : [1, 2, 3, 4, 5, 6];
    for (const seed of seeds) {
      const [json, matched, tagged] = await Promise.all(
        constraints.slice(1).map((constraint) => sample({ seed, temperature, constraint: constraint! })),
      );
      const value = JSON.parse(textOf(json!));
      expect(Object.keys(value)).toEqual(['move', 'steps', 'why']);
      expect(['up', 'down', 'left']).toContain(value.move);
      expect(value.steps >= 1 && value.steps <= 20).toBe(true);
      expect(textOf(matched!)).toMatch(/^[a-f]{3,6}(-\d{2}){1,2}$/);
      expect(textOf(tagged!)).toMatch(/^<answer>-?\d+<\/answer>$/);
      for (const { finish, tokenIds } of [json!, matched!, tagged!]) {
        expect([finish.reason, tokenIds.at(-1)]).toEqual(['stop', end]);
      }
    }
  });

  test('logprobs are those of the policy itself, not of what the constraint leaves', async () => {
    const { tokenIds, logprobs } = await sample({ constraint: constraints[1]! });
    const promptIds = tokenizer.encode('Where to?');
    const source = { kind: 'served', policyStep: 0 } as const;
    const scored = await engine.doLogprobs({ tokenIds: [...promptIds, ...tokenIds], temperature: 1, source });
    expect(scored.slice(promptIds.length)).toEqual(logprobs);
  });

  test('a batch of mixed constraints gives each the tokens that it gets alone', async () => {
    const requests = Array.from({ length: 16 }, (_, i) => ({
      seed: i,
      temperature: i % 3 === 0 ? 0 : 1,
      maxTokens: 60,
      ...(constraints[i % 4] ? { constraint: constraints[i % 4]! } : {}),
      ...(i % 5 === 0 ? { presencePenalty: 1 } : {}),
    }));
    const together = await Promise.all(requests.map((sampling) => sample(sampling)));
    for (const [i, sampling] of requests.entries()) {
      const alone = await sample(sampling);
      expect([alone.tokenIds, alone.logprobs]).toEqual([together[i]!.tokenIds, together[i]!.logprobs]);
    }
  });

  test('maxTokens cuts a text off, a stop string ends it, both before it is complete', async () => {
    const cut = await sample({ constraint: constraints[1]!, maxTokens: 3 });
    expect([cut.finish.reason, cut.tokenIds.length]).toEqual(['length', 3]);
    const stopped = await sample({ constraint: constraints[1]!, stopStrings: ['"steps"'] });
    expect(stopped.finish.reason).toBe('stop');
    expect(textOf(stopped)).toMatch(/"steps"$/);
  });

  test('without stop tokens a complete text ends', async () => {
    const { finish, tokenIds } = await sample({ constraint: { type: 'literal', text: 'done' }, stopTokenIds: [] });
    expect([finish.reason, tokenizer.decode(tokenIds)]).toEqual(['stop', 'done']);
  });

  test('one that cannot be met is refused before anything is sampled, and the next one works', async () => {
    const wrong: TextConstraint = { type: 'jsonSchema', schema: { type: 'array', uniqueItems: true } };
    await expect(sample({ constraint: wrong })).rejects.toMatchObject({
      code: 'data_error',
      message: expect.stringMatching(/^constraint\.schema\.uniqueItems: /),
    });
    await expectIdle(engine);
    expect(textOf(await sample({ constraint: { type: 'literal', text: 'ok' } }))).toBe('ok');
  });
});
