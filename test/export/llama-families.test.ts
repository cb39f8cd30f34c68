/**
 * Every family in llama.cpp says what transformers and PEFT say, as a merged file and as an adapter beside the base. The models are tiny
 * and random, so that each tensor matters. Skipped without llama.cpp, see `llama-cpp.test.ts`.
 */
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { exportPolicy } from '../../src/export/index.ts';
import { formatJson, isPresent, readJsonFile, writeFileAtomic } from '../../src/formats/atomic-files.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { readAdapterFiles } from '../../src/formats/peft.ts';
import { readSafetensors } from '../../src/formats/safetensors.ts';
import { symbolOfByte } from '../../src/formats/tokenizer-bytes.ts';
import { root } from '../source-imports.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { fixtures } from './fixture-run.ts';
import { llamaFolder, runLlama } from './llama.ts';
import { writeRunFolder } from './run-folder.ts';

const folder = await mkdtemp(join(tmpdir(), 'art-families-'));
afterAll(() => rm(folder, { recursive: true }));

interface Case {
  readonly base: string;
  /** Folder of PEFT; null = the base alone. */
  readonly adapter: string | null;
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly number[];
}

/** The logprobs of llama.cpp for a merged file, and for the adapter on the base. */
async function scoreCase(name: string, { base, adapter, tokenIds }: Case): Promise<(readonly number[])[]> {
  const runs = join(folder, name, 'runs');
  const plain = join(folder, name, 'plain');
  const { config } = adapter === null ? { config: { rank: 1, alpha: 1 } } : await readAdapterFiles(adapter);
  const fill = adapter === null ? {} : { fill: (_step: number, to: string) => cp(adapter, to, { recursive: true }) };
  await writeRunFolder({ root: runs, base, ...config, steps: [1], strength: 0, ...fill });
  await writeRunFolder({ root: plain, base, steps: [1], strength: 0 });
  const write = async (path: string, format: 'gguf' | 'gguf-lora'): Promise<string> => {
    const out = join(path, `${format}.gguf`);
    await exportPolicy({ path, name: 'agent', format, dtype: 'f32', out });
    return out;
  };
  const job = { promptIds: tokenIds.slice(0, 1), continuationIds: tokenIds.slice(1), texts: [] };
  const results = await runLlama([
    { ...job, model: await write(runs, 'gguf'), lora: null },
    { ...job, model: await write(plain, 'gguf'), lora: await write(runs, 'gguf-lora') },
  ]);
  return results.map(({ logprobs }) => logprobs);
}

/** A model of test/fixtures/families, with a tokenizer of 64 bytes that is there only because llama.cpp wants one. */
async function readFamily(name: string): Promise<Case> {
  const source = join(root, 'test', 'fixtures', 'families', name);
  const base = join(folder, name, 'base');
  const adapter = join(folder, name, 'adapter');
  const hasAdapter = await isPresent(join(source, 'peft', 'adapter_config.json'));
  for (const file of ['config.json', 'model.safetensors']) await cp(join(source, file), join(base, file));
  if (hasAdapter) {
    for (const file of ['adapter_config.json', 'adapter_model.safetensors'])
      await cp(join(source, 'peft', file), join(adapter, file));
  }
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  const vocab = Object.fromEntries(symbolOfByte.slice(0, 64).map((symbol, byte) => [symbol, byte]));
  const tokenizer = {
    added_tokens: [],
    pre_tokenizer: byteLevel,
    decoder: byteLevel,
    model: { type: 'BPE', vocab, merges: [] },
  };
  await writeFileAtomic(join(base, 'tokenizer.json'), [formatJson(tokenizer)]);
  const { config } = await openModel(base);
  if (config.ropeScaling?.kind === 'longrope') await widenOriginalContext(base, config.ropeScaling.attentionFactor);
  const expected = (await readJsonFile(join(source, 'expected.json'))) as { sequences: { tokenIds: number[] }[] };
  const tensors = await readSafetensors(join(source, 'expected.safetensors'));
  const { data } = tensors.get(`${hasAdapter ? 'adapter/' : ''}logprobs/0`)!;
  return { base, adapter: hasAdapter ? adapter : null, tokenIds: expected.sequences[0]!.tokenIds, logprobs: [...data] };
}

/**
 * llama.cpp takes the long factors if its context, never smaller than 256, is larger than the original one; transformers if the sequence is.
 * The factors and the scale of the tables stay.
 */
async function widenOriginalContext(base: string, attentionFactor: number): Promise<void> {
  const path = join(base, 'config.json');
  const config = (await readJsonFile(path)) as { rope_parameters: object };
  const positions = { original_max_position_embeddings: 1024, attention_factor: attentionFactor };
  const wide = { original_max_position_embeddings: 1024, max_position_embeddings: 2048 };
  const json = { ...config, ...wide, rope_parameters: { ...config.rope_parameters, ...positions } };
  await writeFileAtomic(path, [formatJson(json)]);
}

describe.skipIf(llamaFolder === undefined)('llama.cpp and transformers (test:export)', { timeout: 120_000 }, () => {
  test.each([
    'llama',
    'llama-tied-rope-llama3',
    'llama-rope-linear',
    'llama-biases',
    'mistral',
    'qwen2',
    'qwen2-sliding-rope-yarn',
    'qwen3',
    'phi3',
    'phi3-longrope-partial',
  ])('%s', async (name) => {
    const family = await readFamily(name);
    const { config } = await openModel(family.base);
    // llama.cpp lets these families see all keys; up to the window that is the same.
    const places = (config.slidingWindow ?? Number.POSITIVE_INFINITY) - 1;
    for (const logprobs of await scoreCase(name, family)) {
      expectClose(logprobs.slice(0, places), family.logprobs.slice(0, places), tolerances.logits, name);
    }
  });

  test('gemma3, with its tokenizer', async () => {
    const source = join(fixtures, 'gemma');
    const { tokenIds, logprobs } = JSON.parse(await readFile(join(source, 'expected.json'), 'utf8'));
    const gemma = { base: join(source, 'base'), adapter: join(source, 'adapter'), tokenIds, logprobs };
    // ggml looks GELU up in a table of half floats.
    const loose = { rtol: 1e-3, atol: 1e-3 };
    for (const ours of await scoreCase('gemma3', gemma)) expectClose(ours, logprobs, loose, 'gemma3');
    const texts = [
      'the quick brown fox',
      ' go on, the  cats.',
      'Zürich 42\n\tx',
      '<bos>the lazy dog<eos>',
      'rains rains',
    ];
    const model = join(folder, 'gemma3', 'runs', 'gguf.gguf');
    const [{ textIds } = { textIds: [] }] = await runLlama([
      { model, lora: null, promptIds: [2], continuationIds: [5], texts },
    ]);
    const tokenizer = await (await openModel(gemma.base)).loadTokenizer();
    expect(textIds).toEqual(texts.map((text) => tokenizer.encode(text)));
  });

  test.each([
    ['gemma3', /order of sliding layers other than five to each full one/],
    ['qwen3-untied', /qwen3 has no bias of o_proj/],
  ])('%s is refused by name where llama.cpp computes otherwise', async (name, message) => {
    const { base } = await readFamily(name);
    const path = join(folder, name, 'refused');
    await writeRunFolder({ root: path, base, steps: [1] });
    const out = join(path, 'model.gguf');
    await expect(exportPolicy({ path, name: 'agent', format: 'gguf', out })).rejects.toThrow(message);
    expect(await isPresent(out)).toBe(false);
  });
});
