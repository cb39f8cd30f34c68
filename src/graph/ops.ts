/**
 * The op table: per op its shape and dtype rule, its ONNX lowering and its float64 reference loop. Layer 1.
 * Gradients are in `grad.ts`, under the same keys. Operators of `com.microsoft` are ONNX Runtime's own.
 */

import { ShapeError } from '../core/errors.ts';
import type { Attributes, Dtype, Tensor } from './builder.ts';
import type { Emitter } from './onnx.ts';
import {
  addAlongLast,
  concatAxis,
  gatherRows,
  logSoftmaxRow,
  mapElements,
  mapRows,
  multiplyMatrices,
  type ReferenceArray,
  rotatePairs,
  scatterRows,
  softmaxRow,
  sumAxes,
  takeAlongLast,
  transposeAxes,
  windowAxis,
} from './reference-kernels.ts';
import { broadcastShapes, type Dim, divideDims, formatShape, multiplyDims, type Shape, sameShape } from './sizes.ts';

export type Op =
  | 'neg'
  | 'exp'
  | 'log'
  | 'sqrt'
  | 'reciprocal'
  | 'sigmoid'
  | 'tanh'
  | 'silu'
  | 'geluTanh'
  | 'stopGradient'
  | 'add'
  | 'sub'
  | 'mul'
  | 'div'
  | 'minimum'
  | 'maximum'
  | 'lessOrEqual'
  | 'equal'
  | 'where'
  | 'toIds'
  | 'reduceSum'
  | 'reduceMean'
  | 'softmax'
  | 'logSoftmax'
  | 'rmsNorm'
  | 'matmul'
  | 'matmulAdd'
  | 'reshape'
  | 'reshapeLike'
  | 'splitRows'
  | 'transpose'
  | 'slice'
  | 'pad'
  | 'concat'
  | 'concatLike'
  | 'sliceLike'
  | 'broadcastTo'
  | 'gatherRows'
  | 'scatterAddRows'
  | 'scatterRows'
  | 'takeAlongLast'
  | 'scatterAddAlongLast'
  | 'rope';

interface Signature {
  readonly shape: Shape;
  readonly dtype: Dtype;
}

export interface OpDefinition {
  /** Shape and dtype of the result; throws ShapeError if the inputs do not fit. */
  readonly infer: (inputs: readonly Tensor[], attributes: Attributes) => Signature;
  /** Adds ONNX nodes for `out`, given the value names of its inputs, and returns the name of the result. */
  readonly lower: (emitter: Emitter, values: readonly string[], out: Tensor) => string;
  /** The result's elements; `shape` is the result's, with numbers for symbols. */
  readonly compute: (
    inputs: readonly ReferenceArray[],
    attributes: Attributes,
    shape: readonly number[],
  ) => Float64Array;
}

/** The i-th input: the builder passes as many as the op takes. */
const at = <T>(items: readonly T[], index: number): T => items[index] as T;

function requireDtype(op: string, tensor: Tensor, allowed: readonly Dtype[]): void {
  if (allowed.includes(tensor.dtype)) return;
  throw new ShapeError(`${op}: dtype must be ${allowed.join(' or ')}, got ${tensor.dtype}`);
}

function requireRank(op: string, tensor: Tensor, least: number): void {
  if (tensor.shape.length >= least) return;
  throw new ShapeError(`${op}: must have at least ${least} axes, got ${formatShape(tensor.shape)}`);
}

function requireIds(op: string, ids: Tensor, shape?: Shape): void {
  requireDtype(op, ids, ['int64']);
  if (shape === undefined || sameShape(ids.shape, shape)) return;
  throw new ShapeError(`${op}: ids must be ${formatShape(shape)}, got ${formatShape(ids.shape)}`);
}

function fixedSize(op: string, x: Tensor, axis: number): number {
  const size = x.shape[axis];
  if (typeof size === 'number') return size;
  throw new ShapeError(`${op}: axis ${axis} must have a fixed size, got ${formatShape(x.shape)}`);
}

function withSize(shape: Shape, axis: number, size: Dim): Shape {
  return shape.map((dim, index) => (index === axis ? size : dim));
}

function unary(op: string, onnxType: string, f: (x: number) => number): OpDefinition {
  return {
    infer: ([x]) => {
      requireDtype(op, x!, ['float32']);
      return { shape: x!.shape, dtype: 'float32' };
    },
    lower: (emitter, values) => emitter.emit(onnxType, values),
    compute: ([x]) => at([x!], 0).data.map(f),
  };
}

function binary(
  op: string,
  onnxType: string,
  f: (a: number, b: number) => number,
  allowed: readonly Dtype[] = ['float32', 'int64'],
  result?: Dtype,
): OpDefinition {
  return {
    infer: ([a, b]) => {
      requireDtype(op, a!, allowed);
      if (a!.dtype !== b!.dtype) throw new ShapeError(`${op}: dtypes must be equal, got ${a!.dtype} and ${b!.dtype}`);
      return { shape: broadcastShapes(op, [a!.shape, b!.shape]), dtype: result ?? a!.dtype };
    },
    lower: (emitter, values) => emitter.emit(onnxType, values),
    compute: (inputs, _attributes, shape) => mapElements(inputs, shape, f),
  };
}

function reduction(op: string, onnxType: string, isMean: boolean): OpDefinition {
  return {
    infer: ([x], { axes, keepDims }) => {
      requireDtype(op, x!, ['float32']);
      if (new Set(axes).size !== axes!.length) throw new ShapeError(`${op}: axes must differ, got [${axes}]`);
      const shape = x!.shape.flatMap((dim, axis) => (axes!.includes(axis) ? (keepDims ? [1] : []) : [dim]));
      return { shape, dtype: 'float32' };
    },
    // An empty list of axes would mean all axes to ONNX.
    lower: (emitter, [x], { attributes: { axes, keepDims } }) =>
      axes!.length === 0 ? x! : emitter.emit(onnxType, [x!, emitter.int64s(axes!)], { keepdims: Number(keepDims) }),
    compute: ([x], { axes }, shape) => {
      const sum = sumAxes(x!, axes!, shape);
      return isMean ? sum.map((value) => (value * sum.length) / x!.data.length) : sum;
    },
  };
}

function rowwise(op: string, onnxType: string, f: (row: Float64Array, out: Float64Array) => void): OpDefinition {
  return {
    infer: ([x]) => {
      requireDtype(op, x!, ['float32']);
      requireRank(op, x!, 1);
      return { shape: x!.shape, dtype: 'float32' };
    },
    lower: (emitter, values) => emitter.emit(onnxType, values, { axis: -1 }),
    compute: ([x]) => mapRows(x!, f),
  };
}

const shapeOf = (emitter: Emitter, value: string): string => emitter.emit('Shape', [value]);

/** The target of Reshape: 0 copies a size from the same axis, −1 is inferred; else sizes are read at run time. */
function lowerReshape(emitter: Emitter, [x]: readonly string[], out: Tensor): string {
  const from = at(out.inputs, 0).shape;
  const isPositional = (dim: Dim, axis: number): boolean => typeof dim === 'string' && from[axis] === dim;
  const elsewhere = out.shape.filter((dim, axis) => typeof dim === 'string' && !isPositional(dim, axis));
  if (elsewhere.length <= 1) {
    const sizes = out.shape.map((dim, axis) => (typeof dim === 'number' ? dim : isPositional(dim, axis) ? 0 : -1));
    return emitter.emit('Reshape', [x!, emitter.int64s(sizes)]);
  }
  const sizes = shapeOf(emitter, x!);
  const parts = out.shape.map((dim) => {
    if (typeof dim === 'number') return emitter.int64s([dim]);
    const axis = from.indexOf(dim);
    return axis < 0 ? emitter.int64s([-1]) : emitter.emit('Gather', [sizes, emitter.int64s([axis])], { axis: 0 });
  });
  return emitter.emit('Reshape', [x!, emitter.emit('Concat', parts, { axis: 0 })]);
}

function inferReshape([x]: readonly Tensor[], { shape }: Attributes): Signature {
  const missing = shape!.filter((dim) => typeof dim === 'string' && !x!.shape.includes(dim));
  if (multiplyDims(x!.shape) !== multiplyDims(shape!)) {
    throw new ShapeError(
      `reshape: number of elements must stay, got ${formatShape(x!.shape)} → ${formatShape(shape!)}`,
    );
  }
  if (missing.length > 1) {
    throw new ShapeError(
      `reshape: at most one size may be absent from the input, got ${formatShape(x!.shape)} → ${formatShape(shape!)}; use reshapeLike`,
    );
  }
  return { shape: shape!, dtype: x!.dtype };
}

function inferMatmul([a, b]: readonly Tensor[], { transA, transB }: Attributes): Signature {
  for (const operand of [a!, b!]) {
    requireDtype('matmul', operand, ['float32']);
    requireRank('matmul', operand, 2);
  }
  const [rows, innerA] = transA ? [a!.shape.at(-1)!, a!.shape.at(-2)!] : [a!.shape.at(-2)!, a!.shape.at(-1)!];
  const [innerB, columns] = transB ? [b!.shape.at(-1)!, b!.shape.at(-2)!] : [b!.shape.at(-2)!, b!.shape.at(-1)!];
  if (innerA !== innerB) {
    const flags = `${transA ? 'ᵀ' : ''} × ${formatShape(b!.shape)}${transB ? 'ᵀ' : ''}`;
    throw new ShapeError(`matmul: inner sizes must match, got ${formatShape(a!.shape)}${flags}`);
  }
  const batch = broadcastShapes('matmul', [a!.shape.slice(0, -2), b!.shape.slice(0, -2)]);
  return { shape: [...batch, rows, columns], dtype: 'float32' };
}

function inferBroadcastTo([x, like]: readonly Tensor[], { shape }: Attributes): Signature {
  const target = like?.shape ?? shape!;
  const lead = target.length - x!.shape.length;
  const fits = (dim: Dim, axis: number): boolean => {
    const size = axis < lead ? 1 : x!.shape[axis - lead];
    return dim === size || (size === 1 && (like !== undefined || typeof dim === 'number'));
  };
  if (lead < 0 || !target.every(fits)) {
    throw new ShapeError(
      `broadcastTo: sizes must be 1 or equal, got ${formatShape(x!.shape)} → ${formatShape(target)}`,
    );
  }
  return { shape: target, dtype: x!.dtype };
}

function inferConcat(xs: readonly Tensor[], { axis }: Attributes): Signature {
  const first = at(xs, 0);
  const sizes = xs.map((x) => fixedSize('concat', x, axis!));
  for (const x of xs) {
    if (x.dtype === first.dtype && sameShape(withSize(x.shape, axis!, 0), withSize(first.shape, axis!, 0))) continue;
    throw new ShapeError(
      `concat: dtypes and all sizes but axis ${axis} must match, got ${xs.map((item) => formatShape(item.shape)).join(' and ')}`,
    );
  }
  return {
    shape: withSize(
      first.shape,
      axis!,
      sizes.reduce((total, size) => total + size),
    ),
    dtype: first.dtype,
  };
}

function inferRowScatter(op: string, [base, ids, updates]: readonly Tensor[]): Signature {
  requireIds(op, ids!);
  requireRank(op, base!, 1);
  const expected = [...ids!.shape, ...base!.shape.slice(1)];
  if (!sameShape(updates!.shape, expected) || updates!.dtype !== base!.dtype) {
    throw new ShapeError(
      `${op}: rows must be ${base!.dtype} ${formatShape(expected)}, got ${formatShape(updates!.shape)}`,
    );
  }
  return { shape: base!.shape, dtype: base!.dtype };
}

/**
 * ScatterElements, because its sums are right for repeated ids and have the same bits at 1 and 2 threads
 * (`runtime.test.ts`); that is not known of ScatterND with reduction.
 */
function lowerScatterAddRows(emitter: Emitter, [base, ids, updates]: readonly string[], out: Tensor): string {
  const row = at(out.inputs, 0).shape.slice(1);
  const fixed = row.map((_, index) => fixedSize('scatterAddRows', at(out.inputs, 0), index + 1));
  const flat = emitter.emit('Reshape', [updates!, emitter.int64s([-1, ...fixed])]);
  const column = emitter.emit('Reshape', [ids!, emitter.int64s([-1, ...row.map(() => 1)])]);
  const indices = emitter.emit('Expand', [column, shapeOf(emitter, flat)]);
  return emitter.emit('ScatterElements', [base!, indices, flat], { axis: 0, reduction: 'add' });
}

function inferRope([x, positions, cos, sin]: readonly Tensor[]): Signature {
  requireDtype('rope', x!, ['float32']);
  if (x!.shape.length !== 4) throw new ShapeError(`rope: x must be [B, H, T, C], got ${formatShape(x!.shape)}`);
  requireIds('rope', positions!, [x!.shape[0]!, x!.shape[2]!]);
  const half = divideDims(x!.shape[3]!, 2);
  if (cos!.shape.length !== 2 || cos!.shape[1] !== half || !sameShape(cos!.shape, sin!.shape)) {
    throw new ShapeError(
      `rope: cos and sin must be [P, ${half}], got ${formatShape(cos!.shape)} and ${formatShape(sin!.shape)}`,
    );
  }
  return { shape: x!.shape, dtype: 'float32' };
}

const sigmoidOf = (x: number): number => 1 / (1 + Math.exp(-x));
const geluTanhOf = (x: number): number => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/** One row an op; `Op` names the keys. Rules throw ShapeError. */
export const ops: { readonly [K in Op]: OpDefinition } = {
  neg: unary('neg', 'Neg', (x) => -x),
  exp: unary('exp', 'Exp', Math.exp),
  log: unary('log', 'Log', Math.log),
  sqrt: unary('sqrt', 'Sqrt', Math.sqrt),
  reciprocal: unary('reciprocal', 'Reciprocal', (x) => 1 / x),
  sigmoid: unary('sigmoid', 'Sigmoid', sigmoidOf),
  tanh: unary('tanh', 'Tanh', Math.tanh),
  silu: {
    ...unary('silu', 'QuickGelu', (x) => x * sigmoidOf(x)),
    // One operator by name, because the optimiser would fuse x·Sigmoid(x) in some graphs and not in others.
    lower: (emitter, values) => emitter.emit('QuickGelu', values, { alpha: { float: 1 } }, 'com.microsoft'),
  },
  geluTanh: {
    ...unary('geluTanh', 'Gelu', geluTanhOf),
    lower: (emitter, values) => emitter.emit('Gelu', values, { approximate: 'tanh' }),
  },
  stopGradient: {
    infer: ([x]) => ({ shape: x!.shape, dtype: x!.dtype }),
    lower: (_emitter, [x]) => x!,
    compute: ([x]) => x!.data,
  },
  add: binary('add', 'Add', (a, b) => a + b),
  sub: binary('sub', 'Sub', (a, b) => a - b),
  mul: binary('mul', 'Mul', (a, b) => a * b),
  div: binary('div', 'Div', (a, b) => a / b, ['float32']),
  minimum: binary('minimum', 'Min', Math.min),
  maximum: binary('maximum', 'Max', Math.max),
  lessOrEqual: binary('lessOrEqual', 'LessOrEqual', (a, b) => Number(a <= b), undefined, 'bool'),
  equal: binary('equal', 'Equal', (a, b) => Number(a === b), undefined, 'bool'),
  where: {
    infer: ([condition, a, b]) => {
      requireDtype('where', condition!, ['bool']);
      if (a!.dtype !== b!.dtype) throw new ShapeError(`where: dtypes must be equal, got ${a!.dtype} and ${b!.dtype}`);
      return { shape: broadcastShapes('where', [condition!.shape, a!.shape, b!.shape]), dtype: a!.dtype };
    },
    lower: (emitter, values) => emitter.emit('Where', values),
    compute: (inputs, _attributes, shape) => mapElements(inputs, shape, (condition, a, b) => (condition ? a! : b!)),
  },
  toIds: {
    infer: ([x]) => {
      requireDtype('toIds', x!, ['float32']);
      return { shape: x!.shape, dtype: 'int64' };
    },
    lower: (emitter, values) => emitter.emit('Cast', values, { to: 7 }), // TensorProto.INT64
    compute: ([x]) => x!.data.map(Math.trunc),
  },
  reduceSum: reduction('reduceSum', 'ReduceSum', false),
  reduceMean: reduction('reduceMean', 'ReduceMean', true),
  softmax: rowwise('softmax', 'Softmax', softmaxRow),
  logSoftmax: rowwise('logSoftmax', 'LogSoftmax', logSoftmaxRow),
  rmsNorm: {
    infer: ([x, weight]) => {
      requireDtype('rmsNorm', x!, ['float32']);
      requireRank('rmsNorm', x!, 1);
      const expected = x!.shape.slice(-1);
      if (!sameShape(weight!.shape, expected)) {
        throw new ShapeError(`rmsNorm: weight must be ${formatShape(expected)}, got ${formatShape(weight!.shape)}`);
      }
      return { shape: x!.shape, dtype: 'float32' };
    },
    lower: (emitter, values, { attributes: { epsilon } }) =>
      emitter.emit('SimplifiedLayerNormalization', values, { axis: -1, epsilon: { float: epsilon! } }),
    compute: ([x, weight], { epsilon }) =>
      mapRows(x!, (row, out) => {
        const meanSquare = row.reduce((total, value) => total + value * value, 0) / row.length;
        for (let i = 0; i < row.length; i++) out[i] = (row[i]! / Math.sqrt(meanSquare + epsilon!)) * weight!.data[i]!;
      }),
  },
  matmul: {
    infer: inferMatmul,
    lower: (emitter, values, { attributes: { transA, transB, alpha } }) =>
      emitter.emit(
        'FusedMatMul',
        values,
        { transA: Number(transA), transB: Number(transB), alpha: { float: alpha! } },
        'com.microsoft',
      ),
    compute: ([a, b], { transA, transB, alpha }, shape) =>
      multiplyMatrices(a!, b!, { transA: transA!, transB: transB!, alpha: alpha! }, shape),
  },
  matmulAdd: {
    infer: ([a, b, base], attributes) => {
      const { shape } = inferMatmul([a!, b!], attributes);
      if (shape.length !== 2 || !sameShape(shape, base!.shape)) {
        throw new ShapeError(`matmulAdd: base must be ${formatShape(shape)}, got ${formatShape(base!.shape)}`);
      }
      return { shape, dtype: 'float32' };
    },
    lower: (emitter, values, { attributes: { transA, transB, alpha } }) =>
      emitter.emit('Gemm', values, { transA: Number(transA), transB: Number(transB), alpha: { float: alpha! } }),
    compute: ([a, b, base], { transA, transB, alpha }, shape) =>
      multiplyMatrices(a!, b!, { transA: transA!, transB: transB!, alpha: alpha! }, shape).map(
        (value, i) => value + base!.data[i]!,
      ),
  },
  reshape: {
    infer: inferReshape,
    lower: lowerReshape,
    compute: ([x]) => x!.data,
  },
  reshapeLike: {
    infer: ([x, like]) => {
      if (multiplyDims(x!.shape) !== multiplyDims(like!.shape)) {
        throw new ShapeError(
          `reshapeLike: number of elements must stay, got ${formatShape(x!.shape)} → ${formatShape(like!.shape)}`,
        );
      }
      return { shape: like!.shape, dtype: x!.dtype };
    },
    lower: (emitter, [x, like]) => emitter.emit('Reshape', [x!, shapeOf(emitter, like!)]),
    compute: ([x]) => x!.data,
  },
  splitRows: {
    infer: ([x, like], { shape }) => {
      const result = [...like!.shape.slice(0, 2), ...shape!];
      if (like!.shape.length < 2 || multiplyDims(result) !== multiplyDims(x!.shape)) {
        throw new ShapeError(
          `splitRows: number of elements must stay, got ${formatShape(x!.shape)} → ${formatShape(result)}`,
        );
      }
      return { shape: result, dtype: x!.dtype };
    },
    lower: (emitter, [x, like], { attributes: { shape } }) => {
      const rows = emitter.emit('Shape', [like!], { start: 0, end: 2 });
      const target = emitter.emit('Concat', [rows, emitter.int64s(shape as readonly number[])], { axis: 0 });
      return emitter.emit('Reshape', [x!, target]);
    },
    compute: ([x]) => x!.data,
  },
  transpose: {
    infer: ([x], { perm }) => {
      if (perm!.length !== x!.shape.length || !x!.shape.every((_, axis) => perm!.includes(axis))) {
        throw new ShapeError(`transpose: perm must hold every axis of ${formatShape(x!.shape)} once, got [${perm}]`);
      }
      return { shape: perm!.map((axis) => x!.shape[axis]!), dtype: x!.dtype };
    },
    lower: (emitter, values, { attributes: { perm } }) => emitter.emit('Transpose', values, { perm: perm! }),
    compute: ([x], { perm }, shape) => transposeAxes(x!, perm!, shape),
  },
  slice: {
    infer: ([x], { axis, start, end }) => {
      const size = fixedSize('slice', x!, axis!);
      if (!(start! >= 0 && start! < end! && end! <= size)) {
        throw new ShapeError(`slice: must keep 0 ≤ start < end ≤ ${size}, got start ${start}, end ${end}`);
      }
      return { shape: withSize(x!.shape, axis!, end! - start!), dtype: x!.dtype };
    },
    lower: (emitter, [x], { attributes: { axis, start, end } }) =>
      emitter.emit('Slice', [x!, emitter.int64s([start!]), emitter.int64s([end!]), emitter.int64s([axis!])]),
    compute: ([x], { axis, start }, shape) => windowAxis(x!, axis!, start!, shape),
  },
  pad: {
    infer: ([x], { axis, start, end }) => {
      const size = fixedSize('pad', x!, axis!);
      if (!(start! >= 0 && start! + size <= end!)) {
        throw new ShapeError(`pad: must keep 0 ≤ start ≤ size − ${size}, got start ${start}, size ${end}`);
      }
      return { shape: withSize(x!.shape, axis!, end!), dtype: x!.dtype };
    },
    lower: (emitter, [x], { attributes: { axis, start, end }, inputs }) => {
      const after = end! - start! - fixedSize('pad', at(inputs, 0), axis!);
      const [pads, axes] = [emitter.int64s([start!, after]), emitter.int64s([axis!])];
      return emitter.emit('Pad', [x!, pads, '', axes], { mode: 'constant' });
    },
    compute: ([x], { axis, start }, shape) => windowAxis(x!, axis!, -start!, shape),
  },
  concat: {
    infer: inferConcat,
    lower: (emitter, values, { attributes: { axis } }) => emitter.emit('Concat', values, { axis: axis! }),
    compute: (inputs, { axis }, shape) => concatAxis(inputs, axis!, shape),
  },
  concatLike: {
    infer: ([a, b, like]) => {
      const [rest, other] = [a!, b!].map((x) => withSize(x.shape, x.shape.length - 1, 0));
      if (a!.dtype !== b!.dtype || a!.shape.length === 0 || !sameShape(rest!, other!) || like!.shape.length === 0) {
        throw new ShapeError(
          `concatLike: dtypes and all sizes but the last must match, got ${formatShape(a!.shape)} and ${formatShape(b!.shape)}`,
        );
      }
      return { shape: withSize(a!.shape, a!.shape.length - 1, like!.shape.at(-1)!), dtype: a!.dtype };
    },
    lower: (emitter, [a, b]) => emitter.emit('Concat', [a!, b!], { axis: -1 }),
    compute: ([a, b], _attributes, shape) => concatAxis([a!, b!], shape.length - 1, shape),
  },
  sliceLike: {
    infer: ([x, like]) => {
      requireRank('sliceLike', x!, 1);
      requireRank('sliceLike', like!, 1);
      return { shape: withSize(x!.shape, x!.shape.length - 1, like!.shape.at(-1)!), dtype: x!.dtype };
    },
    lower: (emitter, [x, like], { attributes: { isEnd } }) => {
      const size = emitter.emit('Shape', [like!], { start: -1 });
      const last = emitter.int64s([-1]);
      const [from, to] = isEnd
        ? [emitter.emit('Neg', [size]), emitter.int64s([Number.MAX_SAFE_INTEGER])]
        : [emitter.int64s([0]), size];
      return emitter.emit('Slice', [x!, from, to, last]);
    },
    compute: ([x], { isEnd }, shape) =>
      windowAxis(x!, shape.length - 1, isEnd ? x!.shape.at(-1)! - shape.at(-1)! : 0, shape),
  },
  broadcastTo: {
    infer: inferBroadcastTo,
    lower: (emitter, [x, like], { shape }) =>
      // Expand broadcasts both ways, so 1 keeps a symbolic size of x.
      emitter.emit('Expand', [
        x!,
        like === undefined
          ? emitter.int64s(shape.map((dim) => (typeof dim === 'number' ? dim : 1)))
          : shapeOf(emitter, like),
      ]),
    compute: ([x], _attributes, shape) => mapElements([x!], shape, (value) => value),
  },
  gatherRows: {
    infer: ([table, ids]) => {
      requireIds('gatherRows', ids!);
      requireRank('gatherRows', table!, 1);
      return { shape: [...ids!.shape, ...table!.shape.slice(1)], dtype: table!.dtype };
    },
    lower: (emitter, values) => emitter.emit('Gather', values, { axis: 0 }),
    compute: ([table, ids]) => gatherRows(table!, ids!),
  },
  scatterAddRows: {
    infer: (inputs) => inferRowScatter('scatterAddRows', inputs),
    lower: lowerScatterAddRows,
    compute: ([base, ids, updates]) => scatterRows(base!, ids!, updates!, (before, update) => before + update),
  },
  scatterRows: {
    infer: (inputs) => inferRowScatter('scatterRows', inputs),
    lower: (emitter, [data, ids, rows]) =>
      emitter.emit('ScatterND', [data!, emitter.emit('Unsqueeze', [ids!, emitter.int64s([-1])]), rows!]),
    compute: ([data, ids, rows]) => scatterRows(data!, ids!, rows!, (_before, update) => update),
  },
  takeAlongLast: {
    infer: ([x, ids]) => {
      requireRank('takeAlongLast', x!, 1);
      requireIds('takeAlongLast', ids!, [...x!.shape.slice(0, -1), ids!.shape.at(-1) ?? 1]);
      return { shape: ids!.shape, dtype: x!.dtype };
    },
    lower: (emitter, values) => emitter.emit('GatherElements', values, { axis: -1 }),
    compute: ([x, ids]) => takeAlongLast(x!, ids!),
  },
  scatterAddAlongLast: {
    infer: ([base, ids, updates]) => {
      requireIds('scatterAddAlongLast', ids!, [...base!.shape.slice(0, -1), ids!.shape.at(-1) ?? 1]);
      if (!sameShape(updates!.shape, ids!.shape)) {
        throw new ShapeError(
          `scatterAddAlongLast: updates must be ${formatShape(ids!.shape)}, got ${formatShape(updates!.shape)}`,
        );
      }
      return { shape: base!.shape, dtype: base!.dtype };
    },
    lower: (emitter, values) => emitter.emit('ScatterElements', values, { axis: -1, reduction: 'add' }),
    compute: ([base, ids, updates]) => addAlongLast(base!, ids!, updates!),
  },
  rope: {
    infer: inferRope,
    lower: (emitter, [x, positions, cos, sin], { attributes: { isInverse } }) =>
      emitter.emit(
        'RotaryEmbedding',
        [x!, positions!, cos!, isInverse ? emitter.emit('Neg', [sin!]) : sin!],
        {},
        'com.microsoft',
      ),
    compute: (inputs, { isInverse }) => rotatePairs(inputs, isInverse!),
  },
};
