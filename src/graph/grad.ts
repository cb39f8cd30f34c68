/**
 * The gradient table: per op its vector-Jacobian product, as graph nodes. Layer 1. Same keys as `ops.ts`.
 * This is the hot path of training: what counts is the number of passes over large tensors.
 */

import {
  add,
  addAlongLast,
  broadcastTo,
  constant,
  div,
  exp,
  gatherRows,
  lessOrEqual,
  matmul,
  mul,
  neg,
  pad,
  reciprocal,
  reduceMean,
  reduceSum,
  reshape,
  reshapeLike,
  rope,
  scatterAddAlongLast,
  scatterAddRows,
  scatterRows,
  sigmoid,
  slice,
  sqrt,
  sub,
  type Tensor,
  takeAlongLast,
  tanh,
  transpose,
  where,
  zerosLike,
} from './builder.ts';
import type { Op } from './ops.ts';
import { multiplyDims } from './sizes.ts';

/**
 * d(loss)/d(input) for each input, given d(loss)/d(out); null where the input is not differentiable. A result may have
 * the shape that the input was broadcast to: `backward.ts` sums it down.
 */
export type Vjp = (grad: Tensor, out: Tensor, inputs: readonly Tensor[]) => readonly (Tensor | null)[];

/** `grad` in the shape of `x`; reads x's sizes at run time only if it must, which would keep x in memory. */
function reshapeBack(grad: Tensor, x: Tensor): Tensor {
  const missing = x.shape.filter((dim) => typeof dim === 'string' && !grad.shape.includes(dim));
  return missing.length > 1 ? reshapeLike(grad, x) : reshape(grad, x.shape);
}

/** The gradient of a reduction, repeated along the reduced axes. */
function spread(grad: Tensor, out: Tensor, x: Tensor): Tensor {
  const { axes, keepDims } = out.attributes;
  const kept = x.shape.map((dim, axis) => (axes!.includes(axis) ? 1 : dim));
  return broadcastTo(keepDims ? grad : reshape(grad, kept), x);
}

/** Number of elements that each mean was taken over, as a scalar or in the shape of `out`. */
function countReduced(out: Tensor, x: Tensor): Tensor {
  const { axes, keepDims } = out.attributes;
  const count = multiplyDims(axes!.map((axis) => x.shape[axis]!));
  return typeof count === 'number' ? constant(count) : reduceSum(broadcastTo(constant(1), x), axes!, keepDims);
}

function matmulVjp(grad: Tensor, out: Tensor, [a, b]: readonly Tensor[]): readonly Tensor[] {
  const { transA, transB, alpha } = out.attributes as { transA: boolean; transB: boolean; alpha: number };
  const gradA = transA
    ? matmul(b!, grad, { transA: transB, transB: true, alpha })
    : matmul(grad, b!, { transB: !transB, alpha });
  const isLinear = b!.shape.length === 2 && a!.shape.length > 2 && !transA;
  // One [N, D]ᵀ × [N, F] product instead of a batch of small ones and a sum over it.
  const flatten = (x: Tensor): Tensor =>
    isLinear ? reshape(x, [multiplyDims(x.shape.slice(0, -1)), x.shape.at(-1)!]) : x;
  return [
    gradA,
    transB
      ? gradOfTransposed(flatten(grad), flatten(a!), transA, alpha)
      : matmul(flatten(a!), flatten(grad), { transA: !transA, alpha }),
  ];
}

/** d(a·bᵀ)/db = gᵀ·a. For a narrow a, as of an adapter, aᵀ·g and a turn of the small result take two thirds of the time. */
function gradOfTransposed(grad: Tensor, a: Tensor, transA: boolean, alpha: number): Tensor {
  const narrow = a.shape.at(-1)!;
  const isNarrow =
    typeof narrow === 'number' && narrow <= 32 && a.shape.length === 2 && grad.shape.length === 2 && !transA;
  if (isNarrow) return transpose(matmul(a, grad, { transA: true, alpha }), [1, 0]);
  return matmul(grad, a, { transA: true, transB: transA, alpha });
}

/** y = x·r·w, r = 1/√(mean(x²) + ε): dx = r·(g·w) − x·r³·mean(g·w·x), dw = Σ g·x·r. r is computed again. */
function rmsNormVjp(grad: Tensor, out: Tensor, [x, weight]: readonly Tensor[]): readonly Tensor[] {
  const r = reciprocal(sqrt(add(reduceMean(mul(x!, x!), [-1], true), out.attributes.epsilon!)));
  const weighted = mul(grad, weight!);
  const mean = reduceMean(mul(weighted, x!), [-1], true);
  const gradX = sub(mul(weighted, r), mul(x!, mul(mean, mul(r, mul(r, r)))));
  return [gradX, mul(grad, mul(x!, r))];
}

/**
 * dx = p·(g − Σ g·p). In attention g = dO·Vᵀ, so that Σ g·p = Σ dO·(p·V): a sum over the head size instead of one over all keys.
 * p·V is a node of the forward pass, and equal nodes are written once. Source: FlashAttention (arXiv 2205.14135) appendix B.
 */
function softmaxVjp(grad: Tensor, out: Tensor): readonly Tensor[] {
  const { transA, transB, alpha } = grad.attributes;
  const isAttention = grad.op === 'matmul' && transA === false && transB === true;
  const weighted = isAttention ? mul(grad.inputs[0]!, matmul(out, grad.inputs[1]!, { alpha: alpha! })) : mul(grad, out);
  return [mul(out, sub(grad, reduceSum(weighted, [-1], true)))];
}

/**
 * dx = g − exp(y)·Σg. For logprobs of chosen tokens g is zeros plus a few updates, so Σg is the sum of the updates, and
 * they are added to the other term: no pass over g.
 */
function logSoftmaxVjp(grad: Tensor, out: Tensor): readonly Tensor[] {
  const [base, ids, updates] = grad.inputs;
  const isSparse = grad.op === 'scatterAddAlongLast' && base!.inputs[0]?.data?.every((value) => Number(value) === 0);
  if (!isSparse || base!.op !== 'broadcastTo') return [sub(grad, mul(exp(out), reduceSum(grad, [-1], true)))];
  return [addAlongLast(mul(exp(out), neg(reduceSum(updates!, [-1], true))), ids!, updates!)];
}

/** y = x/2 · (1 + h), h = tanh(u), u = c·(x + a·x³): dy/dx = (1 + h)/2 + x/2 · (1 − h²) · c·(1 + 3a·x²) */
function geluTanhVjp(grad: Tensor, _out: Tensor, [x]: readonly Tensor[]): readonly Tensor[] {
  const c = Math.sqrt(2 / Math.PI);
  const square = mul(x!, x!);
  const h = tanh(mul(mul(x!, c), add(mul(square, 0.044715), 1)));
  const slope = mul(sub(1, mul(h, h)), mul(mul(x!, c), add(mul(square, 3 * 0.044715), 1)));
  return [mul(grad, mul(add(add(h, 1), slope), 0.5))];
}

/** Gradient to a where a was chosen, else to b. */
function choose(isA: Tensor, grad: Tensor): readonly Tensor[] {
  return [where(isA, grad, 0), where(isA, 0, grad)];
}

function concatVjp(grad: Tensor, out: Tensor, inputs: readonly Tensor[]): readonly Tensor[] {
  const axis = out.attributes.axis!;
  let start = 0;
  return inputs.map((x) => {
    const end = start + (x.shape[axis] as number);
    const part = slice(grad, axis, start, end);
    start = end;
    return part;
  });
}

/** One row an op; null = not differentiable. */
export const vjps: { readonly [K in Op]: Vjp | null } = {
  neg: (grad) => [neg(grad)],
  exp: (grad, out) => [mul(grad, out)],
  log: (grad, _out, [x]) => [div(grad, x!)],
  sqrt: (grad, out) => [div(mul(grad, 0.5), out)],
  reciprocal: (grad, out) => [neg(mul(grad, mul(out, out)))],
  sigmoid: (grad, out) => [mul(grad, mul(out, sub(1, out)))],
  tanh: (grad, out) => [mul(grad, sub(1, mul(out, out)))],
  // s + x·s·(1 − s) = s·(1 + x − y), as x·s = y
  silu: (grad, out, [x]) => [mul(grad, mul(sigmoid(x!), add(sub(x!, out), 1)))],
  geluTanh: geluTanhVjp,
  stopGradient: null,
  add: (grad) => [grad, grad],
  sub: (grad) => [grad, neg(grad)],
  mul: (grad, _out, [a, b]) => [mul(grad, b!), mul(grad, a!)],
  div: (grad, out, [, b]) => [div(grad, b!), neg(div(mul(grad, out), b!))],
  minimum: (grad, _out, [a, b]) => choose(lessOrEqual(a!, b!), grad),
  maximum: (grad, _out, [a, b]) => choose(lessOrEqual(b!, a!), grad),
  lessOrEqual: null,
  equal: null,
  toIds: null,
  concatLike: null,
  sliceLike: null,
  where: (grad, _out, [condition]) => [null, ...choose(condition!, grad)],
  reduceSum: (grad, out, [x]) => [spread(grad, out, x!)],
  reduceMean: (grad, out, [x]) => [spread(div(grad, countReduced(out, x!)), out, x!)],
  softmax: softmaxVjp,
  logSoftmax: logSoftmaxVjp,
  rmsNorm: rmsNormVjp,
  matmul: matmulVjp,
  matmulAdd: (grad, out, inputs) => [...matmulVjp(grad, out, inputs), grad],
  reshape: (grad, _out, [x]) => [reshapeBack(grad, x!)],
  reshapeLike: (grad, _out, [x]) => [reshapeBack(grad, x!), null],
  splitRows: (grad, _out, [x]) => [reshapeBack(grad, x!), null],
  transpose: (grad, out) => {
    const perm = out.attributes.perm!;
    return [
      transpose(
        grad,
        perm.map((_, axis) => perm.indexOf(axis)),
      ),
    ];
  },
  slice: (grad, { attributes: { axis, start } }, [x]) => [pad(grad, axis!, start!, x!.shape[axis!] as number)],
  pad: (grad, { attributes: { axis, start } }, [x]) => [
    slice(grad, axis!, start!, start! + (x!.shape[axis!] as number)),
  ],
  concat: concatVjp,
  broadcastTo: (grad) => [grad, null],
  gatherRows: (grad, _out, [table, ids]) => [scatterAddRows(ids!, grad, table!), null],
  scatterAddRows: (grad, _out, [, ids]) => [grad, null, gatherRows(grad, ids!)],
  scatterRows: (grad, _out, [, ids, rows]) => [scatterRows(grad, ids!, zerosLike(rows!)), null, gatherRows(grad, ids!)],
  takeAlongLast: (grad, _out, [x, ids]) => [scatterAddAlongLast(ids!, grad, x!), null],
  scatterAddAlongLast: (grad, _out, [, ids]) => [grad, null, takeAlongLast(grad, ids!)],
  rope: (grad, { attributes: { isInverse } }, [, positions, cos, sin]) => [
    rope(grad, positions!, cos!, sin!, { inverse: !isInverse }),
    null,
    null,
    null,
  ],
};
