/**
 * Reverse-mode gradients: adds the nodes of `grad.ts` to a graph. Layer 1.
 * Only nodes between the outputs and `wrt` get gradients, so frozen weights cost nothing.
 */

import { ConfigError, ShapeError } from '../core/errors.ts';
import { add, broadcastTo, constant, reduceSum, type Tensor } from './builder.ts';
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
  const gradientOf = new Map<number, Tensor>();
  const path = findPath(outputs, wrt);
  const onPath = new Set(path.map(({ id }) => id));
  const accumulate = (tensor: Tensor, grad: Tensor): void => {
    const before = gradientOf.get(tensor.id);
    const summed = sumToShape(grad, tensor);
    gradientOf.set(tensor.id, before === undefined ? summed : add(before, summed));
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
    const grad = gradientOf.get(tensor.id);
    const vjp = tensor.op === 'input' || tensor.op === 'constant' ? null : vjps[tensor.op];
    if (grad === undefined || vjp === null) continue;
    for (const [index, part] of vjp(grad, tensor, tensor.inputs).entries()) {
      const target = tensor.inputs[index]!;
      if (part !== null && onPath.has(target.id)) accumulate(target, part);
    }
  }
  return wrt.map((tensor) => {
    const grad = gradientOf.get(tensor.id);
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
