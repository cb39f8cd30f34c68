/**
 * What keeps the bits of sampler and trainer equal: where a sequence may stand in a packed row so that its attention has the same
 * bits as alone, and the constants that both must share. Layer 1.
 * Measured on ONNX Runtime 1.30's float32 CPU kernels for head sizes 16 to 256; `bit-exact.test.ts` checks it.
 */

/**
 * probabilities · V sums over keys block by block: 1,024 keys for head size 16, 512 for 32, 256 for 48 and 64, 128 for
 * 80 to 256. The loop is the rule that fits these: tiles of 128 × 128, halving the columns while the keys double.
 */
export function attentionBlock(headSize: number): number {
  let columns = 128;
  let keys = 128;
  while (columns > 16 && columns / 2 >= headSize) {
    columns /= 2;
    keys *= 2;
  }
  return keys;
}

/** Score of a key that a query must not see: its exponential is 0, and unlike −∞ it gives no NaN. */
export const maskedScore = -1e30;

/** Products of a single row take another kernel, with other bits: shorter ones are padded to this. */
export const minProductRows = 2;

/** Offsets inside a block are multiples of this: the sums of softmax run in vectors. */
export const attentionAlignment = 8;

/** True if a sequence of `length` tokens at `offset` of a packed row gives the bits that it gives alone. */
export function isExactOffset(offset: number, length: number, headSize: number): boolean {
  const block = attentionBlock(headSize);
  if (offset % block === 0) return true;
  return offset % attentionAlignment === 0 && (offset % block) + length <= block;
}

/**
 * Least number of keys of an attention product. Scores of head sizes above 128 sum over channels in blocks of 128, but in one block if
 * there are fewer keys than that.
 */
export function minKeys(headSize: number): number {
  return headSize > 128 ? 128 : 1;
}
