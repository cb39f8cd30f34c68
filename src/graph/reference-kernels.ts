/**
 * Plain float64 loops behind the reference executor: the definition of correct. Layer 1.
 * Every dtype is held as float64 here (int64 ids are exact below 2^53, bool is 0 or 1). Nothing here is tuned.
 */

import { DataError } from '../core/errors.ts';

export interface ReferenceArray {
  readonly shape: readonly number[];
  readonly data: Float64Array;
}

export function countElements(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** Element strides of a row-major `shape`, aligned to the right of `rank` axes; 0 where the axis is broadcast. */
function broadcastStrides(shape: readonly number[], rank: number): number[] {
  const strides = new Array<number>(rank).fill(0);
  let stride = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const size = shape[axis]!;
    if (size !== 1) strides[axis + rank - shape.length] = stride;
    stride *= size;
  }
  return strides;
}

/** The offset of every element of `shape`, in row-major order, into an array with these strides. */
function offsetsOf(shape: readonly number[], strides: readonly number[]): Int32Array {
  const offsets = new Int32Array(countElements(shape));
  let filled = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const block = filled;
    for (let index = 1; index < shape[axis]!; index++) {
      for (let i = 0; i < block; i++) offsets[filled++] = offsets[i]! + index * strides[axis]!;
    }
  }
  return offsets;
}

/** `f` of the inputs' elements, broadcast to `shape`. */
export function mapElements(
  inputs: readonly ReferenceArray[],
  shape: readonly number[],
  f: (...values: number[]) => number,
): Float64Array {
  const offsets = inputs.map((input) => offsetsOf(shape, broadcastStrides(input.shape, shape.length)));
  const result = new Float64Array(countElements(shape));
  for (let i = 0; i < result.length; i++) result[i] = f(...inputs.map((input, k) => input.data[offsets[k]![i]!]!));
  return result;
}

/** Sums over `axes`; `shape` is the result with those axes kept at size 1 or dropped. */
export function sumAxes(input: ReferenceArray, axes: readonly number[], shape: readonly number[]): Float64Array {
  const kept = input.shape.map((size, axis) => (axes.includes(axis) ? 1 : size));
  const offsets = offsetsOf(input.shape, broadcastStrides(kept, kept.length));
  const result = new Float64Array(countElements(shape));
  for (let i = 0; i < input.data.length; i++) result[offsets[i]!]! += input.data[i]!;
  return result;
}

/** `f` fills each row of the last axis of the result from the same row of the input. */
export function mapRows(input: ReferenceArray, f: (row: Float64Array, out: Float64Array) => void): Float64Array {
  const width = input.shape.at(-1)!;
  const result = new Float64Array(input.data.length);
  for (let at = 0; at < result.length; at += width)
    f(input.data.subarray(at, at + width), result.subarray(at, at + width));
  return result;
}

export function softmaxRow(row: Float64Array, out: Float64Array): void {
  const largest = Math.max(...row);
  let total = 0;
  for (const [i, value] of row.entries()) {
    out[i] = Math.exp(value - largest);
    total += out[i]!;
  }
  for (let i = 0; i < out.length; i++) out[i]! /= total;
}

export function logSoftmaxRow(row: Float64Array, out: Float64Array): void {
  const largest = Math.max(...row);
  const logTotal = largest + Math.log(row.reduce((total, value) => total + Math.exp(value - largest), 0));
  for (const [i, value] of row.entries()) out[i] = value - logTotal;
}

export interface MatmulFlags {
  readonly transA: boolean;
  readonly transB: boolean;
  readonly alpha: number;
}

/** alpha · op(A) · op(B) over the last two axes; the axes before them are broadcast. */
export function multiplyMatrices(
  a: ReferenceArray,
  b: ReferenceArray,
  { transA, transB, alpha }: MatmulFlags,
  shape: readonly number[],
): Float64Array {
  const [rows, columns] = [shape.at(-2)!, shape.at(-1)!];
  const inner = a.shape.at(transA ? -2 : -1)!;
  const batch = shape.slice(0, -2);
  const matrixOffsets = (input: ReferenceArray): Int32Array => {
    const size = input.shape.at(-2)! * input.shape.at(-1)!;
    return offsetsOf(batch, broadcastStrides(input.shape.slice(0, -2), batch.length)).map((offset) => offset * size);
  };
  const [aOffsets, bOffsets] = [matrixOffsets(a), matrixOffsets(b)];
  const [aRow, aInner] = transA ? [1, rows] : [inner, 1];
  const [bInner, bColumn] = transB ? [1, inner] : [columns, 1];
  const result = new Float64Array(countElements(shape));
  for (let i = 0, at = 0; i < aOffsets.length; i++) {
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        let sum = 0;
        for (let k = 0; k < inner; k++) {
          sum +=
            a.data[aOffsets[i]! + row * aRow + k * aInner]! * b.data[bOffsets[i]! + k * bInner + column * bColumn]!;
        }
        result[at++] = alpha * sum;
      }
    }
  }
  return result;
}

export function transposeAxes(input: ReferenceArray, perm: readonly number[], shape: readonly number[]): Float64Array {
  const strides = input.shape.map((_, axis) => countElements(input.shape.slice(axis + 1)));
  return Float64Array.from(
    offsetsOf(
      shape,
      perm.map((axis) => strides[axis]!),
    ),
    (offset) => input.data[offset]!,
  );
}

/** The part [start, start + shape[axis]) of `axis`; reads 0 outside the input, so a negative start pads. */
export function windowAxis(input: ReferenceArray, axis: number, start: number, shape: readonly number[]): Float64Array {
  const inner = countElements(shape.slice(axis + 1));
  const outer = countElements(shape.slice(0, axis));
  const result = new Float64Array(countElements(shape));
  const [size, width] = [input.shape[axis]!, shape[axis]!];
  for (let i = 0; i < outer; i++) {
    for (let j = 0; j < width; j++) {
      if (start + j < 0 || start + j >= size) continue;
      const from = (i * size + start + j) * inner;
      result.set(input.data.subarray(from, from + inner), (i * width + j) * inner);
    }
  }
  return result;
}

export function concatAxis(inputs: readonly ReferenceArray[], axis: number, shape: readonly number[]): Float64Array {
  const outer = countElements(shape.slice(0, axis));
  const result = new Float64Array(countElements(shape));
  for (let i = 0, at = 0; i < outer; i++) {
    for (const input of inputs) {
      const block = input.data.length / outer;
      result.set(input.data.subarray(i * block, (i + 1) * block), at);
      at += block;
    }
  }
  return result;
}

function checkIndex(op: string, index: number, size: number): number {
  if (index >= 0 && index < size) return index;
  throw new DataError(`${op}: ids must be at least 0 and below ${size}, got ${index}`);
}

export function gatherRows(table: ReferenceArray, ids: ReferenceArray): Float64Array {
  const rows = table.shape[0]!;
  const width = table.data.length / rows;
  const result = new Float64Array(ids.data.length * width);
  for (const [i, id] of ids.data.entries()) {
    const row = checkIndex('gatherRows', id, rows);
    result.set(table.data.subarray(row * width, (row + 1) * width), i * width);
  }
  return result;
}

/** Copies `base` and combines row `ids[i]` with row i of `updates`. */
export function scatterRows(
  base: ReferenceArray,
  ids: ReferenceArray,
  updates: ReferenceArray,
  combine: (before: number, update: number) => number,
): Float64Array {
  const rows = base.shape[0]!;
  const width = base.data.length / rows;
  const result = base.data.slice();
  for (const [i, id] of ids.data.entries()) {
    const at = checkIndex('scatterRows', id, rows) * width;
    for (let j = 0; j < width; j++) result[at + j] = combine(result[at + j]!, updates.data[i * width + j]!);
  }
  return result;
}

export function takeAlongLast(x: ReferenceArray, ids: ReferenceArray): Float64Array {
  const [width, count] = [x.shape.at(-1)!, ids.shape.at(-1)!];
  return ids.data.map((id, i) => x.data[Math.floor(i / count) * width + checkIndex('takeAlongLast', id, width)]!);
}

export function addAlongLast(base: ReferenceArray, ids: ReferenceArray, updates: ReferenceArray): Float64Array {
  const [width, count] = [base.shape.at(-1)!, ids.shape.at(-1)!];
  const result = base.data.slice();
  for (const [i, id] of ids.data.entries()) {
    result[Math.floor(i / count) * width + checkIndex('scatterAddAlongLast', id, width)]! += updates.data[i]!;
  }
  return result;
}

/** Rotates the pairs (i, i + C/2) of the last axis by the angle at each position: Hugging Face's rotate-half form. */
export function rotatePairs([x, positions, cos, sin]: readonly ReferenceArray[], isInverse: boolean): Float64Array {
  const [, heads, length, width] = x!.shape as [number, number, number, number];
  const half = width / 2;
  const result = new Float64Array(x!.data.length);
  for (let row = 0; row < result.length / width; row++) {
    const sequence = Math.floor(row / (heads * length));
    const position = checkIndex('rope', positions!.data[sequence * length + (row % length)]!, cos!.shape[0]!);
    for (let i = 0; i < half; i++) {
      const c = cos!.data[position * half + i]!;
      const s = sin!.data[position * half + i]! * (isInverse ? -1 : 1);
      const [a, b] = [x!.data[row * width + i]!, x!.data[row * width + half + i]!];
      result[row * width + i] = a * c - b * s;
      result[row * width + half + i] = b * c + a * s;
    }
  }
  return result;
}
