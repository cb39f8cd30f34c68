/** Weights rounded to 8 bits, for products that need not be exact. Layer 1. */

interface Quantized {
  readonly data: Int8Array;
  readonly scales: Float32Array;
}

/** Several graphs of one process multiply by the same weights. */
const known = new WeakMap<Float32Array, Quantized>();

/** Elements of a square that is turned at once: both its sides stay in the processor's cache. */
const TILE = 64;

/**
 * Rows of weights [N, K] as int8, each with a scale of its own, in the order [K, N] that ONNX products read:
 * `weights[n, k] ≈ data[k, n] · scales[n]`, off by at most half a scale. A row of zeros has scale 1.
 */
export function quantizeRows(weights: Float32Array, [rows, columns]: readonly [number, number]): Quantized {
  const earlier = known.get(weights);
  if (earlier) return earlier;
  const scales = new Float32Array(rows);
  for (let row = 0; row < rows; row++) {
    let largest = 0;
    for (let i = row * columns; i < (row + 1) * columns; i++) largest = Math.max(largest, Math.abs(weights[i]!));
    scales[row] = largest === 0 ? 1 : largest / 127;
  }
  const data = new Int8Array(rows * columns);
  for (let row0 = 0; row0 < rows; row0 += TILE) {
    for (let column0 = 0; column0 < columns; column0 += TILE) {
      for (let row = row0; row < Math.min(rows, row0 + TILE); row++) {
        const scale = scales[row]!;
        for (let column = column0; column < Math.min(columns, column0 + TILE); column++) {
          data[column * rows + row] = Math.round(weights[row * columns + column]! / scale);
        }
      }
    }
  }
  const quantized = { data, scales };
  known.set(weights, quantized);
  return quantized;
}
