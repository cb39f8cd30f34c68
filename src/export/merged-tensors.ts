/** The parameters of a policy, base and adapter in one, streamed so that one tensor is in memory at a time. Layer 5. */
import type { FloatTensor } from '../formats/safetensors.ts';
import { loraTensorName } from '../nn/lora.ts';
import { mergeAdapter } from '../nn/merge-adapter.ts';
import { linearName, parameterShapes } from '../nn/parameters.ts';
import type { Policy } from './find-policy.ts';

/** By Hugging Face's names, in the order of the base's files. Throws DataError if a file of the base is damaged. */
export async function* mergedTensors({ base, adapter, spec }: Policy): AsyncGenerator<readonly [string, FloatTensor]> {
  const pairs = new Map<string, readonly [FloatTensor, FloatTensor]>();
  for (let layer = 0; layer < base.config.layers; layer++) {
    for (const module of spec.targetModules) {
      const [a, b] = (['A', 'B'] as const).map((part) => adapter.tensors.get(loraTensorName(layer, module, part))!);
      pairs.set(`${linearName(layer, module)}.weight`, [a!, b!]);
    }
  }
  for await (const [name, tensor] of base.streamTensors()) {
    const pair = pairs.get(name);
    if (pair !== undefined) mergeAdapter(tensor, ...pair, spec.alpha / spec.rank);
    yield [name, tensor];
  }
}

/** Names and shapes of all of them, known before any is read. */
export function mergedShapes({ base }: Policy): ReadonlyMap<string, readonly number[]> {
  return parameterShapes(base.config);
}
