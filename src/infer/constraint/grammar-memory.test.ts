/** What constrained sequences leave behind in memory, and what loading the library writes. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { createTokenizer } from '../../formats/tokenizer.ts';
import { Grammars } from './grammars.ts';

const file = new URL('../../../test/fixtures/tokenizers/smollm2.json', import.meta.url);
const tokenizer = createTokenizer(JSON.parse(readFileSync(file, 'utf8')));

test('1,000 sequences, each with a constraint of its own, leave nothing in the memory of WebAssembly', async () => {
  const grammars = new Grammars(tokenizer, tokenizer.vocabSize);
  const follow = async (first: number, last: number): Promise<void> => {
    for (let i = first; i < last; i++) {
      const name = `name${i}`;
      const schema = { type: 'object', properties: { [name]: { type: 'string' } }, required: [name] } as const;
      const matcher = await grammars.match({ type: 'jsonSchema', schema }, []);
      for (const id of tokenizer.encode(`{"${name}": "a b c"}`)) await matcher.accept(id);
      matcher.dispose();
    }
  };
  // More than are kept.
  await follow(0, 200);
  const before = process.memoryUsage();
  await follow(200, 1200);
  // Its memory only grows, by a fifth at least.
  expect((process.memoryUsage().external - before.external) / 1e6).toBeLessThan(3);
}, 30_000);

test('loading the library warns of nothing', async () => {
  const warnings: string[] = [];
  const listen = (warning: Error): void => void warnings.push(String(warning));
  process.on('warning', listen);
  const grammars = new Grammars(tokenizer, tokenizer.vocabSize);
  (await grammars.match({ type: 'literal', text: 'a' }, [])).dispose();
  await new Promise((resolve) => setImmediate(resolve));
  process.off('warning', listen);
  expect(warnings).toEqual([]);
});
