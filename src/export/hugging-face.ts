/** A policy as a Hugging Face model folder: one set of weights, adapter merged, that transformers loads. Layer 5. */
import { join } from 'node:path';
import { DataError } from '../core/errors.ts';
import { formatJson, readJsonFile, writeFileAtomic } from '../formats/atomic-files.ts';
import { type EncodedFloats, encodeFloats } from '../formats/encode-floats.ts';
import { families } from '../formats/hf-families.ts';
import { layOutSafetensors, type SafetensorsInfo } from '../formats/safetensors-layout.ts';
import { createTensorFile, type TensorFile, type TensorLayout } from '../formats/tensor-file.ts';
import type { Policy } from './find-policy.ts';
import { mergedShapes, mergedTensors } from './merged-tensors.ts';

export type SafetensorsFloats = Exclude<EncodedFloats, 'Q8_0'>;

export interface HuggingFacePlan {
  /** By file name; one, or shards in order. */
  readonly files: ReadonlyMap<string, TensorLayout>;
  readonly totalBytes: number;
}

/** `save_pretrained` of transformers begins a new shard at 5 GB. */
export const defaultShardBytes = 5e9;

const metadata = { format: 'pt' };

/** Shards of at most `maxShardBytes`, unless one tensor alone is larger; all tensors of the type. */
export function planHuggingFace(policy: Policy, dtype: SafetensorsFloats, maxShardBytes: number): HuggingFacePlan {
  const shards: { bytes: number; readonly tensors: SafetensorsInfo[] }[] = [];
  for (const [name, shape] of mergedShapes(policy)) {
    const bytes = shape.reduce((product, size) => product * size, dtype === 'F32' ? 4 : 2);
    const last = shards.at(-1);
    const tensor = { name, dtype, shape };
    if (last === undefined || last.bytes + bytes > maxShardBytes) shards.push({ bytes, tensors: [tensor] });
    else {
      last.bytes += bytes;
      last.tensors.push(tensor);
    }
  }
  const number = (index: number): string => String(index).padStart(5, '0');
  const files = new Map(
    shards.map(({ tensors }, index) => [
      shards.length === 1 ? 'model.safetensors' : `model-${number(index + 1)}-of-${number(shards.length)}.safetensors`,
      layOutSafetensors(tensors, metadata),
    ]),
  );
  return { files, totalBytes: [...files.values()].reduce((total, { totalBytes }) => total + totalBytes, 0) };
}

/** Fills an empty folder: weights, index if sharded, configuration, tokenizer. `onTensor` is told the bytes of each tensor written. */
export async function writeHuggingFace(
  directory: string,
  policy: Policy,
  dtype: SafetensorsFloats,
  plan: HuggingFacePlan,
  onTensor: (bytes: number) => void,
): Promise<void> {
  const fileOf = new Map<string, TensorFile>();
  const open: TensorFile[] = [];
  try {
    for (const [name, layout] of plan.files) {
      const file = await createTensorFile(join(directory, name), layout);
      open.push(file);
      for (const tensor of layout.spans.keys()) fileOf.set(tensor, file);
    }
    for await (const [name, { data }] of mergedTensors(policy)) {
      const bytes = encodeFloats(dtype, data, name);
      const file = fileOf.get(name);
      if (file === undefined)
        throw new DataError(`export: the base must hold nothing but the model's tensors, got ${name}`);
      await file.write(name, bytes);
      onTensor(bytes.length);
    }
    for (const file of open) await file.finish();
  } finally {
    for (const file of open) await file.close();
  }
  if (plan.files.size > 1) await writeIndex(directory, plan);
  await policy.base.writeTextFiles(directory);
  if (policy.chatTemplate !== null)
    await writeFileAtomic(join(directory, 'chat_template.jinja'), [policy.chatTemplate]);
  await completeConfig(join(directory, 'config.json'), policy, dtype);
}

async function writeIndex(directory: string, { files }: HuggingFacePlan): Promise<void> {
  const places = [...files].flatMap(([file, { spans }]) => [...spans].map(([name, span]) => ({ file, name, span })));
  places.sort((a, b) => (a.name < b.name ? -1 : 1));
  const index = {
    metadata: { total_size: places.reduce((total, { span }) => total + span.bytes, 0) },
    weight_map: Object.fromEntries(places.map(({ name, file }) => [name, file])),
  };
  await writeFileAtomic(join(directory, 'model.safetensors.index.json'), [formatJson(index)]);
}

/**
 * The dtype of the weights, and the class that a config.json from a GGUF file does not name. transformers 4 reads `torch_dtype`, 5 `dtype`;
 * the key that is there stays the one that is written.
 */
async function completeConfig(path: string, { base }: Policy, dtype: SafetensorsFloats): Promise<void> {
  const config = (await readJsonFile(path)) as Record<string, unknown>;
  const value = { F32: 'float32', F16: 'float16', BF16: 'bfloat16' }[dtype];
  const key = 'dtype' in config ? 'dtype' : 'torch_dtype';
  const architectures = [`${families[base.config.modelType].className}ForCausalLM`];
  await writeFileAtomic(path, [formatJson({ architectures, ...config, [key]: value })]);
}
