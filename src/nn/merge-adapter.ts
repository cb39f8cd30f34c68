/**
 * A LoRA adapter added to the weights it was trained on: W + (alpha / rank) · B · A. Layer 2.
 * Sums are float64 and each result is rounded to float32 once, so a merged model differs from base and adapter apart only by that.
 */
import { ShapeError } from '../core/errors.ts';
import type { Parameter } from './parameters.ts';

/** Adds to `weight` [out, in] in place; A is [R, in], B [out, R], `scale` alpha / R. Throws ShapeError. */
export function mergeAdapter(weight: Parameter, a: Parameter, b: Parameter, scale: number): void {
  const [outSize, inSize] = weight.shape as readonly [number, number];
  const rank = a.shape[0]!;
  if (a.shape.join() !== `${rank},${inSize}` || b.shape.join() !== `${outSize},${rank}`) {
    throw new ShapeError(
      `merge: A must be [R, in] and B [out, R] of W [${weight.shape.join(', ')}], got [${a.shape.join(', ')}] and [${b.shape.join(', ')}]`,
    );
  }
  const change = new Float64Array(inSize);
  for (let row = 0; row < outSize; row++) {
    change.fill(0);
    for (let r = 0; r < rank; r++) {
      const factor = scale * b.data[row * rank + r]!;
      if (factor === 0) continue;
      const start = r * inSize;
      for (let i = 0; i < inSize; i++) change[i]! += factor * a.data[start + i]!;
    }
    const start = row * inSize;
    for (let i = 0; i < inSize; i++) weight.data[start + i] = weight.data[start + i]! + change[i]!;
  }
}
