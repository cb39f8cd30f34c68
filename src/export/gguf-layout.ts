/** Parameters as llama.cpp has them: names, order of rows, norms. Layer 5. Source: llama.cpp conversion/llama.py and gemma.py. */
import { DataError } from '../core/errors.ts';
import type { DecoderConfig } from '../formats/decoder-config.ts';
import { addedInGguf, ggufArchitectures, isRowPermuted, toGgufName } from '../formats/gguf-names.ts';
import type { FloatTensor } from '../formats/safetensors.ts';

/** Throws DataError on a name that no decoder here has. */
export function ggufName(name: string, config: DecoderConfig): string {
  const architecture = ggufArchitectures[config.modelType];
  const known = toGgufName(name, architecture);
  if (known === null) throw new DataError(`gguf: llama.cpp's ${architecture} has no tensor for ${name}`);
  return known;
}

/** The tensor's values as llama.cpp reads them: the same object, or a new one. */
export function toGgufLayout(name: string, tensor: FloatTensor, config: DecoderConfig): FloatTensor {
  const heads = permutedHeads(name, config);
  if (heads !== null) return permuteRotaryRows(tensor, heads);
  const added = addedInGguf(name, ggufArchitectures[config.modelType]);
  if (added === 0) return tensor;
  return { shape: tensor.shape, data: tensor.data.map((value) => value + added) };
}

/** Heads of a tensor whose rows llama.cpp has in another order; null for all others. */
export function permutedHeads(name: string, config: DecoderConfig): number | null {
  if (!isRowPermuted(name, ggufArchitectures[config.modelType])) return null;
  return name.includes('.q_proj.') ? config.heads : config.kvHeads;
}

/**
 * Hugging Face's Llama turns channel i of a head with channel i + C/2, llama.cpp's with its neighbour: rows of each head
 * 0, C/2, 1, C/2 + 1, … of a weight [heads · C, …], a bias, or B of an adapter.
 */
export function permuteRotaryRows({ shape, data }: FloatTensor, heads: number): FloatTensor {
  const rows = shape[0]!;
  const rowSize = data.length / rows;
  const headSize = rows / heads;
  const permuted = new Float32Array(data.length);
  for (let row = 0; row < rows; row++) {
    const i = row % headSize;
    const from = row - i + (i % 2) * (headSize / 2) + Math.floor(i / 2);
    permuted.set(data.subarray(from * rowSize, (from + 1) * rowSize), row * rowSize);
  }
  return { shape, data: permuted };
}
