/**
 * A policy for llama.cpp: as one merged model, or as an adapter beside the base. Layer 5.
 * Source: llama.cpp conversion/base.py and convert_lora_to_gguf.py.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { readJsonFile } from '../formats/atomic-files.ts';
import { type EncodedFloats, encodeFloats, isEncodable } from '../formats/encode-floats.ts';
import { ggufArchitectures } from '../formats/gguf-names.ts';
import { ggufFileTypes } from '../formats/gguf-types.ts';
import { type GgufTensorInfo, type GgufValue, layOutGguf } from '../formats/gguf-writer.ts';
import type { FloatTensor } from '../formats/safetensors.ts';
import { createTensorFile, type TensorLayout } from '../formats/tensor-file.ts';
import { loraTensorName } from '../nn/lora.ts';
import { linearName } from '../nn/parameters.ts';
import type { Policy } from './find-policy.ts';
import { ggufName, permutedHeads, permuteRotaryRows, toGgufLayout } from './gguf-layout.ts';
import { architectureMetadata, architectureWarnings, float32, ropeTensors, string, uint32 } from './gguf-metadata.ts';
import { tokenizerMetadata } from './gguf-tokenizer.ts';
import { mergedShapes, mergedTensors } from './merged-tensors.ts';

export interface GgufPlan {
  readonly layout: TensorLayout;
  readonly types: ReadonlyMap<string, EncodedFloats>;
  readonly tensors: () => AsyncIterable<readonly [string, FloatTensor]>;
  readonly warnings: readonly string[];
}

/** The merged model: llama.cpp's metadata, tokenizer, and all parameters. Throws ConfigError on what llama.cpp does not have. */
export async function planGgufModel(policy: Policy, type: EncodedFloats, temporaryFolder: string): Promise<GgufPlan> {
  const { config, tokenizerConfig } = policy.base;
  const tokenizer = tokenizerMetadata(await readTokenizerJson(policy, temporaryFolder), tokenizerConfig, config);
  const metadata = new Map<string, GgufValue>([
    ...generalMetadata(policy, 'model', type),
    ...architectureMetadata(config),
    ...tokenizer.metadata,
  ]);
  const extra = ropeTensors(config);
  const infos: GgufTensorInfo[] = [...extra].map(([name, { shape }]) => ({ name, shape, type: 'F32' }));
  for (const [name, shape] of mergedShapes(policy)) infos.push(tensorInfo(ggufName(name, config), shape, type));
  async function* tensors(): AsyncGenerator<readonly [string, FloatTensor]> {
    yield* extra;
    for await (const [name, tensor] of mergedTensors(policy)) {
      yield [ggufName(name, config), toGgufLayout(name, tensor, config)];
    }
  }
  return toPlan(metadata, infos, tensors, [...architectureWarnings(config), ...tokenizer.warnings]);
}

/** The adapter alone, for `llama-cli --lora` and the like, beside a GGUF of the same base. */
export function planGgufLora(policy: Policy, type: EncodedFloats): GgufPlan {
  const { config } = policy.base;
  const metadata = new Map<string, GgufValue>([
    ...generalMetadata(policy, 'adapter', type),
    ['adapter.type', string('lora')],
    ['adapter.lora.alpha', float32(policy.spec.alpha)],
  ]);
  const infos: GgufTensorInfo[] = [];
  const places: { readonly name: string; readonly source: string; readonly heads: number | null }[] = [];
  for (let layer = 0; layer < config.layers; layer++) {
    for (const module of policy.spec.targetModules) {
      const weight = `${linearName(layer, module)}.weight`;
      for (const part of ['A', 'B'] as const) {
        const name = `${ggufName(weight, config)}.lora_${part.toLowerCase()}`;
        const source = loraTensorName(layer, module, part);
        infos.push(tensorInfo(name, policy.adapter.tensors.get(source)!.shape, type));
        places.push({ name, source, heads: part === 'B' ? permutedHeads(weight, config) : null });
      }
    }
  }
  async function* tensors(): AsyncGenerator<readonly [string, FloatTensor]> {
    for (const { name, source, heads } of places) {
      const tensor = policy.adapter.tensors.get(source)!;
      yield [name, heads === null ? tensor : permuteRotaryRows(tensor, heads)];
    }
  }
  return toPlan(metadata, infos, tensors, architectureWarnings(config));
}

/** Writes the file under a name that is free. `onTensor` is told the bytes of each tensor written. */
export async function writeGguf(path: string, plan: GgufPlan, onTensor: (bytes: number) => void): Promise<void> {
  const file = await createTensorFile(path, plan.layout);
  try {
    for await (const [name, { data }] of plan.tensors()) {
      const bytes = encodeFloats(plan.types.get(name) ?? 'F32', data, name);
      await file.write(name, bytes);
      onTensor(bytes.length);
    }
    await file.finish();
  } finally {
    await file.close();
  }
}

function toPlan(
  metadata: ReadonlyMap<string, GgufValue>,
  infos: readonly GgufTensorInfo[],
  tensors: GgufPlan['tensors'],
  warnings: readonly string[],
): GgufPlan {
  const types = new Map(infos.map(({ name, type }) => [name, type]));
  return { layout: layOutGguf(metadata, infos), types, tensors, warnings };
}

function generalMetadata(policy: Policy, kind: 'model' | 'adapter', type: EncodedFloats): [string, GgufValue][] {
  return [
    ['general.architecture', string(ggufArchitectures[policy.base.config.modelType])],
    ['general.type', string(kind)],
    ['general.name', string(`${policy.name}@${policy.step}`)],
    ['general.file_type', uint32(ggufFileTypes[type])],
    ['general.quantization_version', uint32(2)],
  ];
}

/** Norms and biases are float32 always; a matrix whose rows do not fill blocks of 32 is F16 instead of Q8_0, as llama.cpp does it. */
function tensorInfo(name: string, shape: readonly number[], type: EncodedFloats): GgufTensorInfo {
  if (shape.length < 2) return { name, shape, type: 'F32' };
  return { name, shape, type: isEncodable(type, shape.at(-1)!) ? type : 'F16' };
}

/** Whatever the base is, it can write the tokenizer as Hugging Face has it. */
async function readTokenizerJson({ base }: Policy, temporaryFolder: string): Promise<unknown> {
  const folder = await mkdtemp(join(temporaryFolder, 'art-export-'));
  try {
    await base.writeTextFiles(folder);
    return await readJsonFile(join(folder, 'tokenizer.json'));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
