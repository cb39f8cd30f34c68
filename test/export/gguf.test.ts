/** GGUF files equal those of Python's gguf package byte for byte, and two readers find in them what was put in. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gguf } from '@huggingface/gguf';
import { afterAll, describe, expect, test } from 'vitest';
import { exportPolicy } from '../../src/export/index.ts';
import { readJsonFile } from '../../src/formats/atomic-files.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { readModelTensors, readSafetensors } from '../../src/formats/safetensors.ts';
import { expectClose, expectSameBits, tolerances } from '../tolerance.ts';
import { createFixtureRun, fixtures, readFixture } from './fixture-run.ts';
import { writeRunFolder } from './run-folder.ts';

const run = await createFixtureRun();
afterAll(run.remove);

const files = [
  ['gguf', 'f32', 'model-f32.gguf'],
  ['gguf', 'f16', 'model-f16.gguf'],
  ['gguf', 'bf16', 'model-bf16.gguf'],
  ['gguf', 'q8_0', 'model-q8_0.gguf'],
  ['gguf-lora', 'f32', 'lora-f32.gguf'],
  ['gguf-lora', 'f16', 'lora-f16.gguf'],
] as const;

describe.each(files)('%s %s', (format, dtype, fixture) => {
  test('has the bytes that GGUFWriter of Python writes', async () => {
    const { path, bytes } = await run.exportTo(fixture, { format, dtype });
    const [ours, theirs] = [await readFile(path), await readFixture(fixture)];
    const first = ours.findIndex((byte, index) => byte !== theirs[index]);
    expect({ first, length: ours.length }).toEqual({ first: -1, length: theirs.length });
    expect(bytes).toBe(theirs.length);
  });

  test('is read by @huggingface/gguf', async () => {
    const path = join(run.folder, fixture);
    const { metadata, tensorInfos, tensorDataOffset } = await gguf(path, { allowLocalFile: true });
    const data: Record<string, unknown> = { ...metadata };
    expect(data['general.architecture']).toBe('llama');
    expect(data['general.type']).toBe(format === 'gguf' ? 'model' : 'adapter');
    expect(Number(tensorDataOffset) % 32).toBe(0);
    expect(tensorInfos.map(({ offset }) => Number(offset) % 32)).toEqual(tensorInfos.map(() => 0));
    const names = tensorInfos.map(({ name }) => name);
    expect(names).toHaveLength(format === 'gguf' ? 12 : 14);
    expect(names).toContain(format === 'gguf' ? 'blk.0.attn_norm.weight' : 'blk.0.attn_q.weight.lora_b');
    if (format === 'gguf') return;
    expect(data['adapter.type']).toBe('lora');
    expect(data['adapter.lora.alpha']).toBe(6);
    const shapeOf = (name: string) => tensorInfos.find((info) => info.name === name)?.shape.map(Number);
    // GGUF has the sizes in reverse: A [R, in] and B [out, R].
    expect(shapeOf('blk.0.attn_k.weight.lora_a')).toEqual([32, 4]);
    expect(shapeOf('blk.0.attn_k.weight.lora_b')).toEqual([4, 16]);
  });
});

test('our reader finds the merged weights, configuration and tokenizer of the file again', async () => {
  const { path } = await run.exportTo('again.gguf', { format: 'gguf', dtype: 'f32' });
  const { path: folder } = await run.exportTo('merged', { format: 'safetensors', dtype: 'f32' });
  const [file, merged] = [await openModel(path), await openModel(folder)];
  expect(file.config).toEqual(merged.config);
  const [theirs, ours] = [await merged.readTensors(), await file.readTensors()];
  expect([...ours.keys()].sort()).toEqual([...theirs.keys()].sort());
  for (const [name, { data }] of theirs) expectSameBits(ours.get(name)!.data, data, name);
  const [a, b] = [await file.loadTokenizer(), await merged.loadTokenizer()];
  for (const text of ['the hat', 'a. b, 12\n', '<s>the</s> <note>']) {
    expect(a.encode(text), text).toEqual(b.encode(text));
    expect(a.encode(text, { isTemplateAdded: true }), text).toEqual(b.encode(text, { isTemplateAdded: true }));
  }
  expect(file.tokenizerConfig.chat_template).toBe(merged.tokenizerConfig.chat_template);
});

test('an exported GGUF file is a base model that can be exported again', async () => {
  const { path: base } = await run.exportTo('base.gguf', { format: 'gguf', dtype: 'f32' });
  const path = join(run.folder, 'second');
  await writeRunFolder({ root: path, base, steps: [1], strength: 0 });
  const out = join(run.folder, 'second.gguf');
  await exportPolicy({ path, name: 'agent', format: 'gguf', dtype: 'f32', out });
  expect(Buffer.compare(await readFile(out), await readFile(base))).toBe(0);
  const folder = join(run.folder, 'second');
  await exportPolicy({ path, name: 'agent', format: 'safetensors', out: join(folder, 'hf') });
  expect(await readJsonFile(join(folder, 'hf', 'config.json'))).toMatchObject({
    architectures: ['LlamaForCausalLM'],
    torch_dtype: 'float32',
  });
});

describe('merged weights', () => {
  test.each(['f32', 'bf16'] as const)("%s equals PEFT's merge_and_unload", async (dtype) => {
    const { path } = await run.exportTo(`hf-${dtype}`, { format: 'safetensors', dtype });
    const [ours, theirs] = [
      await readModelTensors(path),
      await readSafetensors(join(fixtures, `peft-merged-${dtype}.safetensors`)),
    ];
    expect([...ours.keys()].sort()).toEqual([...theirs.keys()].sort());
    // PEFT rounds the product, its scaling and the sum: to float32 each, or to bfloat16, whose numbers are 2⁻⁸ apart.
    const tolerance = dtype === 'f32' ? tolerances.op : { rtol: 2 ** -7, atol: 2 ** -7 };
    for (const [name, { data }] of theirs) expectClose(ours.get(name)!.data, data, tolerance, name);
  });
});
