/**
 * Typed nodes of a computation graph. Layer 1.
 * Nodes are immutable data made by pure functions; a graph is whatever its outputs reach. Each function here adds one
 * node of the table in `ops.ts`, which checks shapes and dtypes.
 */

import { ConfigError, ShapeError } from '../core/errors.ts';
import { type Op, ops } from './ops.ts';
import { canonicalDim, formatShape, type Shape, sameShape } from './sizes.ts';

export type Dtype = 'float32' | 'int64' | 'bool';

/** All attributes that ops take; each op reads its own. Axes are stored counted from the front. */
export interface Attributes {
  readonly axes?: readonly number[];
  readonly axis?: number;
  readonly keepDims?: boolean;
  readonly transA?: boolean;
  readonly transB?: boolean;
  readonly alpha?: number;
  readonly epsilon?: number;
  readonly shape?: Shape;
  readonly perm?: readonly number[];
  readonly start?: number;
  readonly end?: number;
  readonly isInverse?: boolean;
  readonly isEnd?: boolean;
}

/** Data of a constant: float32 constants keep float64 values, which the reference executor uses. */
export type ConstantData = Float64Array | BigInt64Array | Uint8Array;

export interface Tensor {
  /** Rises in the order of creation, so inputs always have a lower id. */
  readonly id: number;
  readonly op: Op | 'input' | 'constant';
  readonly inputs: readonly Tensor[];
  readonly attributes: Attributes;
  readonly shape: Shape;
  readonly dtype: Dtype;
  /** Of inputs only. */
  readonly name?: string;
  /** Of constants only. */
  readonly data?: ConstantData;
}

export interface Graph {
  /** In the order of creation. */
  readonly inputs: readonly Tensor[];
  /** Every node except inputs, each after what it reads. */
  readonly nodes: readonly Tensor[];
  readonly outputs: Readonly<Record<string, Tensor>>;
}

let lastId = 0; // Orders nodes; nothing that is computed or serialised depends on its value.

function node(op: Op, inputs: readonly Tensor[], attributes: Attributes = {}): Tensor {
  const { shape, dtype } = ops[op].infer(inputs, attributes);
  return { id: ++lastId, op, inputs, attributes, shape, dtype };
}

/** The same node reading other tensors of the same shapes. */
export function withInputs(tensor: Tensor, inputs: readonly Tensor[]): Tensor {
  return { ...tensor, id: ++lastId, inputs };
}

function normalizeAxis(op: string, axis: number, rank: number): number {
  const result = axis < 0 ? axis + rank : axis;
  if (Number.isInteger(axis) && result >= 0 && result < rank) return result;
  throw new ShapeError(`${op}: axis must be at least ${-rank} and below ${rank}, got ${axis}`);
}

/** A value that is fed at run time. Two inputs of one graph may share a name only if they are the same node. */
export function input(name: string, shape: Shape, dtype: Dtype = 'float32'): Tensor {
  if (!/^[A-Za-z_][\w./-]*$/.test(name)) {
    throw new ConfigError(`input: name must start with a letter and hold letters, digits and ._-/ only, got '${name}'`);
  }
  return { id: ++lastId, op: 'input', inputs: [], attributes: {}, shape: shape.map(canonicalDim), dtype, name };
}

/** A scalar, or an array of `shape` (its length when left out). */
export function constant(
  value: number | readonly number[] | Float32Array | Float64Array,
  shape?: readonly number[],
  dtype: Dtype = 'float32',
): Tensor {
  const values = typeof value === 'number' ? [value] : Array.from(value);
  const sizes = shape ?? (typeof value === 'number' ? [] : [values.length]);
  if (sizes.reduce((product, size) => product * size, 1) !== values.length) {
    throw new ShapeError(`constant: shape must hold ${values.length} values, got ${formatShape(sizes)}`);
  }
  const data =
    dtype === 'float32'
      ? Float64Array.from(values)
      : dtype === 'int64'
        ? BigInt64Array.from(values, BigInt)
        : Uint8Array.from(values, (item) => (item === 0 ? 0 : 1));
  return { id: ++lastId, op: 'constant', inputs: [], attributes: {}, shape: sizes, dtype, data };
}

/** A tensor, or a number that becomes a float32 constant. */
export type Operand = Tensor | number;

function operand(value: Operand): Tensor {
  return typeof value === 'number' ? constant(value) : value;
}

export const neg = (x: Tensor): Tensor => node('neg', [x]);
export const exp = (x: Tensor): Tensor => node('exp', [x]);
export const log = (x: Tensor): Tensor => node('log', [x]);
export const sqrt = (x: Tensor): Tensor => node('sqrt', [x]);
export const reciprocal = (x: Tensor): Tensor => node('reciprocal', [x]);
export const sigmoid = (x: Tensor): Tensor => node('sigmoid', [x]);
export const tanh = (x: Tensor): Tensor => node('tanh', [x]);
/** x · sigmoid(x) */
export const silu = (x: Tensor): Tensor => node('silu', [x]);
/** x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) */
export const geluTanh = (x: Tensor): Tensor => node('geluTanh', [x]);
/** Identity with no gradient. */
export const stopGradient = (x: Tensor): Tensor => node('stopGradient', [x]);

export const add = (a: Operand, b: Operand): Tensor => node('add', [operand(a), operand(b)]);
export const sub = (a: Operand, b: Operand): Tensor => node('sub', [operand(a), operand(b)]);
export const mul = (a: Operand, b: Operand): Tensor => node('mul', [operand(a), operand(b)]);
export const div = (a: Operand, b: Operand): Tensor => node('div', [operand(a), operand(b)]);
/** Where both are equal the gradient goes to `a`. */
export const minimum = (a: Operand, b: Operand): Tensor => node('minimum', [operand(a), operand(b)]);
/** Where both are equal the gradient goes to `a`. */
export const maximum = (a: Operand, b: Operand): Tensor => node('maximum', [operand(a), operand(b)]);
/** a ≤ b as bool; both float32 or both int64. */
export const lessOrEqual = (a: Operand, b: Operand): Tensor => node('lessOrEqual', [operand(a), operand(b)]);
/** a = b as bool; both float32 or both int64. */
export const equal = (a: Operand, b: Operand): Tensor => node('equal', [operand(a), operand(b)]);
/** `a` where the condition (bool) holds, else `b`; all three are broadcast. */
export const where = (condition: Tensor, a: Operand, b: Operand): Tensor =>
  node('where', [condition, operand(a), operand(b)]);

/** Whole part as int64. */
export const toIds = (x: Tensor): Tensor => node('toIds', [x]);

/** Axes may count from the end; they are dropped unless `keepDims`. */
export function reduceSum(x: Tensor, axes: readonly number[], keepDims = false): Tensor {
  return node('reduceSum', [x], {
    axes: axes.map((axis) => normalizeAxis('reduceSum', axis, x.shape.length)),
    keepDims,
  });
}

/** Axes may count from the end; they are dropped unless `keepDims`. */
export function reduceMean(x: Tensor, axes: readonly number[], keepDims = false): Tensor {
  return node('reduceMean', [x], {
    axes: axes.map((axis) => normalizeAxis('reduceMean', axis, x.shape.length)),
    keepDims,
  });
}

/** Over the last axis. */
export const softmax = (x: Tensor): Tensor => node('softmax', [x]);
/** Over the last axis. */
export const logSoftmax = (x: Tensor): Tensor => node('logSoftmax', [x]);

/** x / √(mean(x²) + epsilon) · weight over the last axis; weight [D]. */
export function rmsNorm(x: Tensor, weight: Tensor, epsilon: number): Tensor {
  return node('rmsNorm', [x, weight], { epsilon });
}

export interface MatmulOptions {
  readonly transA?: boolean;
  readonly transB?: boolean;
  /** Factor of the product, 1 when left out. */
  readonly alpha?: number;
}

/** alpha · op(A) · op(B) over the last two axes, where op swaps them if asked; the axes before are broadcast. */
export function matmul(a: Tensor, b: Tensor, options: MatmulOptions = {}): Tensor {
  return node('matmul', [a, b], { transA: false, transB: false, alpha: 1, ...options });
}

/** base + alpha · op(A) · op(B) of matrices: one pass over the result less than `add` of a `matmul`. */
export function matmulAdd(a: Tensor, b: Tensor, base: Tensor, options: MatmulOptions = {}): Tensor {
  return node('matmulAdd', [a, b, base], { transA: false, transB: false, alpha: 1, ...options });
}

/** At most one symbolic size of `shape` may be absent from the sizes of x; more need `reshapeLike`. */
export function reshape(x: Tensor, shape: Shape): Tensor {
  return node('reshape', [x], { shape: shape.map(canonicalDim) });
}

/** x in the shape of `like`, whatever the symbols; `like` gives no values and gets no gradient. */
export function reshapeLike(x: Tensor, like: Tensor): Tensor {
  return sameShape(x.shape, like.shape) ? x : node('reshapeLike', [x, like]);
}

/** Rows [B·T, …] as [B, T, ...tail], where B and T are the first two sizes of `like`; it gives no values and gets no gradient. */
export function splitRows(x: Tensor, like: Tensor, tail: readonly number[]): Tensor {
  return node('splitRows', [x, like], { shape: tail });
}

/** Axis i of the result is axis perm[i] of x. */
export function transpose(x: Tensor, perm: readonly number[]): Tensor {
  return node('transpose', [x], { perm });
}

/** Positions [start, end) of an axis of fixed size. */
export function slice(x: Tensor, axis: number, start: number, end: number): Tensor {
  return node('slice', [x], { axis: normalizeAxis('slice', axis, x.shape.length), start, end });
}

/** Zeros around an axis of fixed size, so that x stands at [start, start + its size) of `size` positions. */
export function pad(x: Tensor, axis: number, start: number, size: number): Tensor {
  return node('pad', [x], { axis: normalizeAxis('pad', axis, x.shape.length), start, end: size });
}

/** Joins along an axis of fixed size. */
export function concat(xs: readonly Tensor[], axis: number): Tensor {
  return node('concat', xs, { axis: normalizeAxis('concat', axis, xs[0]?.shape.length ?? 0) });
}

/** Joins along the last axis, whatever its sizes; the result's is that of `like`, whose values are unused. */
export const concatLike = (a: Tensor, b: Tensor, like: Tensor): Tensor => node('concatLike', [a, b, like]);

/** As many values from the start, or end, of the last axis as `like` has there; its values are unused. */
export function sliceLike(x: Tensor, like: Tensor, from: 'start' | 'end'): Tensor {
  return node('sliceLike', [x, like], { isEnd: from === 'end' });
}

/** x repeated to a shape (its symbolic sizes must be sizes of x) or to the shape of a tensor, whose values are unused. */
export function broadcastTo(x: Tensor, target: Shape | Tensor): Tensor {
  if ('op' in target) return sameShape(x.shape, target.shape) ? x : node('broadcastTo', [x, target]);
  return node('broadcastTo', [x], { shape: target.map(canonicalDim) });
}

/** Rows `ids` (int64, any shape) of `table` [R, ...]: [...ids, ...]. */
export const gatherRows = (table: Tensor, ids: Tensor): Tensor => node('gatherRows', [table, ids]);

/** `base` [R, ...] plus row i of `updates` at row ids[i]; ids may repeat. */
export function addRows(base: Tensor, ids: Tensor, updates: Tensor): Tensor {
  return node('scatterAddRows', [base, ids, updates]);
}

/** Zeros in the shape of `likeTable`, plus row i of `updates` at row ids[i]; ids may repeat. */
export function scatterAddRows(ids: Tensor, updates: Tensor, likeTable: Tensor): Tensor {
  return addRows(zerosLike(likeTable), ids, updates);
}

/** `data` [R, ...] with row rowIds[i] replaced by row i of `rows`; rowIds [N] must not repeat. */
export function scatterRows(data: Tensor, rowIds: Tensor, rows: Tensor): Tensor {
  return node('scatterRows', [data, rowIds, rows]);
}

/** x[..., ids]: for each position of the axes before, the values at ids [..., k] of the last axis. */
export const takeAlongLast = (x: Tensor, ids: Tensor): Tensor => node('takeAlongLast', [x, ids]);

/** `base` [..., V] plus `updates` [..., k] at ids [..., k] of the last axis; ids may repeat. */
export function addAlongLast(base: Tensor, ids: Tensor, updates: Tensor): Tensor {
  return node('scatterAddAlongLast', [base, ids, updates]);
}

/** Zeros in the shape of `like`, plus `updates` [..., k] at ids [..., k] of the last axis; ids may repeat. */
export function scatterAddAlongLast(ids: Tensor, updates: Tensor, like: Tensor): Tensor {
  return addAlongLast(zerosLike(like), ids, updates);
}

export interface RopeOptions {
  /** Rotate by the negative angle. */
  readonly inverse?: boolean;
}

/**
 * Rotary position embedding, pairs (i, i + C/2) as in Hugging Face Llama.
 * x [B, H, T, C], positions int64 [B, T], cos and sin [P, C/2] by position.
 */
export function rope(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, options: RopeOptions = {}): Tensor {
  return node('rope', [x, positions, cos, sin], { isInverse: options.inverse ?? false });
}

/** float32 zeros; x gives its sizes alone. */
export function zerosLike(x: Tensor): Tensor {
  return broadcastTo(constant(0), x);
}

/** Collects what the outputs reach. Throws ConfigError if two inputs share a name. */
export function makeGraph(outputs: Readonly<Record<string, Tensor>>): Graph {
  const reached = new Map<number, Tensor>();
  const stack = Object.values(outputs);
  for (let tensor = stack.pop(); tensor !== undefined; tensor = stack.pop()) {
    if (reached.has(tensor.id)) continue;
    reached.set(tensor.id, tensor);
    stack.push(...tensor.inputs);
  }
  const sorted = [...reached.values()].sort((a, b) => a.id - b.id);
  const inputs = sorted.filter((tensor) => tensor.op === 'input');
  const names = new Set<string>();
  for (const { name } of inputs) {
    if (names.has(name!)) throw new ConfigError(`graph: input names must be unique, got '${name}' twice`);
    names.add(name!);
  }
  return { inputs, nodes: sorted.filter((tensor) => tensor.op !== 'input'), outputs };
}
