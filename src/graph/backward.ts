/**
 * Reverse-mode gradients: adds the nodes of `grad.ts` to a graph. Layer 1.
 * Only nodes between the outputs and `wrt` get gradients, so frozen weights cost nothing.
 */

import { ConfigError, ShapeError } from '../core/errors.ts';
import {
  add,
  broadcastTo,
  concat,
  constant,
  type MatmulOptions,
  matmul,
  matmulAdd,
  reduceSum,
  type Tensor,
} from './builder.ts';
import { vjps } from './grad.ts';
import { formatShape, sameShape } from './sizes.ts';

/** Sums `grad` over the axes along which an input of the shape of `x` was broadcast. */
function sumToShape(grad: Tensor, x: Tensor): Tensor {
  const lead = grad.shape.length - x.shape.length;
  const leading = Array.from({ length: lead }, (_, axis) => axis);
  const summed = lead === 0 ? grad : reduceSum(grad, leading);
  const repeated = x.shape.flatMap((dim, axis) => (dim === 1 && summed.shape[axis] !== 1 ? [axis] : []));
  const result = repeated.length === 0 ? summed : reduceSum(summed, repeated, true);
  return sameShape(result.shape, x.shape) ? result : broadcastTo(result, x);
}

/** Inner sizes up to this, as of adapters, are joined to one product: their cost is that of writing the result. */
const MAX_JOINED = 64;

function isPlainProduct({ op, attributes, shape }: Tensor): boolean {
  return op === 'matmul' && shape.length === 2 && !attributes.transA && !attributes.transB;
}

/** Σ aᵢ·bᵢ of products with narrow fixed inner sizes and the same factor as one product of joined operands. */
function joinNarrow(parts: readonly Tensor[]): Tensor[] {
  const isNarrow = (part: Tensor): boolean => {
    const inner = part.inputs[0]?.shape[1];
    return isPlainProduct(part) && typeof inner === 'number' && inner <= MAX_JOINED / 2;
  };
  const narrow = parts.filter(isNarrow);
  const inner = narrow.reduce((total, part) => total + (part.inputs[0]!.shape[1] as number), 0);
  const { alpha } = narrow[0]?.attributes ?? {};
  const isJoinable = narrow.length > 1 && inner <= MAX_JOINED;
  if (!isJoinable || narrow.some((part) => part.attributes.alpha !== alpha)) return [...parts];
  const a = narrow.map((part) => part.inputs[0]!);
  const b = narrow.map((part) => part.inputs[1]!);
  return [...parts.filter((part) => !isNarrow(part)), matmul(concat(a, 1), concat(b, 0), { alpha: alpha! })];
}

/**
 * The sum of all gradients that reached a tensor. Products are added onto what is there, each in one pass. Every part is a node of the
 * backward pass alone, so its bits are free.
 */
function sumParts(parts: readonly Tensor[]): Tensor {
  if (parts.length === 1) return parts[0]!;
  const joined = joinNarrow(parts);
  const isProduct = (part: Tensor): boolean => part.op === 'matmul' && part.shape.length === 2;
  const products = joined.filter(isProduct);
  const others = joined.filter((part) => !isProduct(part));
  const base = others.length > 0 ? others.reduce((sum, part) => add(sum, part)) : products.shift()!;
  return products.reduce(
    (sum, { inputs: [a, b], attributes }) => matmulAdd(a!, b!, sum, attributes as MatmulOptions),
    base,
  );
}

/** The nodes that the outputs reach and that reach a member of `wrt` through differentiable ops, newest first. */
function findPath(outputs: readonly Tensor[], wrt: readonly Tensor[]): Tensor[] {
  const isOnPath = new Map<number, boolean>(wrt.map((tensor) => [tensor.id, true]));
  const reached = new Map<number, Tensor>();
  const stack = [...outputs];
  for (let tensor = stack.pop(); tensor !== undefined; tensor = stack.pop()) {
    if (reached.has(tensor.id)) continue;
    reached.set(tensor.id, tensor);
    stack.push(...tensor.inputs);
  }
  const sorted = [...reached.values()].sort((a, b) => a.id - b.id);
  for (const { id, op, inputs, dtype } of sorted) {
    const isDifferentiable = op !== 'input' && op !== 'constant' && vjps[op] !== null && dtype === 'float32';
    if (isDifferentiable && inputs.some((item) => isOnPath.get(item.id))) isOnPath.set(id, true);
  }
  return sorted.filter(({ id }) => isOnPath.get(id)).reverse();
}

function describe(tensor: Tensor): string {
  return `${tensor.name ?? tensor.op} ${formatShape(tensor.shape)}`;
}

/**
 * Σ cotangentᵀ · d(output)/d(wrt), one tensor for each of `wrt`, in its shape.
 * Throws ConfigError if a member of `wrt` does not reach the outputs through differentiable ops.
 */
export function pullback(
  outputs: readonly Tensor[],
  cotangents: readonly Tensor[],
  wrt: readonly Tensor[],
): readonly Tensor[] {
  const partsOf = new Map<number, Tensor[]>();
  const path = findPath(outputs, wrt);
  const onPath = new Set(path.map(({ id }) => id));
  const accumulate = (tensor: Tensor, grad: Tensor): void => {
    const summed = sumToShape(grad, tensor);
    const parts = partsOf.get(tensor.id);
    if (parts === undefined) partsOf.set(tensor.id, [summed]);
    else parts.push(summed);
  };
  const gradientOf = (tensor: Tensor): Tensor | undefined => {
    const parts = partsOf.get(tensor.id);
    if (parts === undefined) return undefined;
    const sum = sumParts(parts);
    partsOf.set(tensor.id, [sum]);
    return sum;
  };
  for (const [index, output] of outputs.entries()) {
    const cotangent = cotangents[index];
    if (cotangent === undefined || !sameShape(cotangent.shape, output.shape)) {
      throw new ShapeError(
        `pullback: cotangent ${index} must be ${formatShape(output.shape)}, got ${cotangent?.shape}`,
      );
    }
    accumulate(output, cotangent);
  }
  for (const tensor of path) {
    const grad = gradientOf(tensor);
    const vjp = tensor.op === 'input' || tensor.op === 'constant' ? null : vjps[tensor.op];
    if (grad === undefined || vjp === null) continue;
    for (const [index, part] of vjp(grad, tensor, tensor.inputs).entries()) {
      const target = tensor.inputs[index]!;
      if (part !== null && onPath.has(target.id)) accumulate(target, part);
    }
  }
  return wrt.map((tensor) => {
    const grad = gradientOf(tensor);
    if (grad !== undefined) return grad;
    throw new ConfigError(`gradients: must depend on what they are taken for, got ${describe(tensor)} off the path`);
  });
}

/** d(loss)/d(wrt) for a loss of shape [] or [1]; throws as `pullback` does. */
export function gradients(loss: Tensor, wrt: readonly Tensor[]): readonly Tensor[] {
  if (loss.shape.length > 1 || loss.shape.some((dim) => dim !== 1)) {
    throw new ShapeError(`gradients: loss must have shape [] or [1], got ${formatShape(loss.shape)}`);
  }
  const one = loss.shape.length === 0 ? constant(1) : constant([1]);
  return pullback([loss], [one], wrt);
}
