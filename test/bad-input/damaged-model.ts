/** Copies of a good model folder with one thing wrong, for tests of what is refused. */
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type FloatTensor, readSafetensors, toSafetensors, writeSafetensors } from '../../src/formats/safetensors.ts';

type Tensors = Map<string, FloatTensor>;

/** Copies `good` to `bad` and lets `damage` change it. */
export async function copyModel(good: string, bad: string, damage: (folder: string) => Promise<void>): Promise<string> {
  await cp(good, bad, { recursive: true });
  await damage(bad);
  return bad;
}

export async function editTensors(folder: string, edit: (tensors: Tensors) => void): Promise<void> {
  const path = join(folder, 'model.safetensors');
  const tensors = new Map(await readSafetensors(path));
  edit(tensors);
  await writeSafetensors(path, toSafetensors(tensors), { format: 'pt' });
}

export async function editJson(path: string, edit: (value: Record<string, unknown>) => void): Promise<void> {
  const value = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
  edit(value);
  await writeFile(path, JSON.stringify(value));
}

/** The weights as two shards with an index. */
export async function shardModel(folder: string): Promise<void> {
  const path = join(folder, 'model.safetensors');
  const tensors = [...(await readSafetensors(path))];
  const half = Math.ceil(tensors.length / 2);
  const shards = {
    'model-00001-of-00002.safetensors': tensors.slice(0, half),
    'model-00002-of-00002.safetensors': tensors.slice(half),
  };
  const map: Record<string, string> = {};
  for (const [name, part] of Object.entries(shards)) {
    await writeSafetensors(join(folder, name), toSafetensors(new Map(part)), { format: 'pt' });
    for (const [tensor] of part) map[tensor] = name;
  }
  await writeFile(join(folder, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: map }));
  await rm(path);
}

/** Cuts the end of a file off. */
export async function truncateFile(path: string, bytes: number): Promise<void> {
  const content = await readFile(path);
  await writeFile(path, content.subarray(0, content.length - bytes));
}
