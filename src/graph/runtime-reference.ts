/**
 * The reference executor: float64 loops, the definition of correct. Layer 1. Slow; for tests and gradient checks.
 */

import type { Dtype, Graph, Tensor } from './builder.ts';
import type { GraphConstants } from './onnx.ts';
import { ops } from './ops.ts';
import type { ReferenceArray } from './reference-kernels.ts';
import { bindFeeds, checkConstants, type Feeds, type HostTensor, type Runtime } from './runtime.ts';
import { bindShape } from './sizes.ts';

function toReference(shape: readonly number[], data: HostTensor['data']): ReferenceArray {
  return { shape, data: data instanceof Float64Array ? data : Float64Array.from(data as ArrayLike<number>, Number) };
}

function fromReference(dtype: Dtype, { shape, data }: ReferenceArray): HostTensor {
  if (dtype === 'float32') return { dtype, shape, data: data.slice() };
  return {
    dtype,
    shape,
    data: dtype === 'int64' ? BigInt64Array.from(Array.from(data, BigInt)) : Uint8Array.from(data),
  };
}

function evaluate(
  graph: Graph,
  feeds: Feeds,
  fetches: readonly string[],
  constants: GraphConstants,
): Record<string, HostTensor> {
  const bindings = bindFeeds(graph, feeds, constants);
  const values = new Map<number, ReferenceArray>();
  const compute = (tensor: Tensor, shape: readonly number[]): ReferenceArray => {
    if (tensor.op === 'input') return toReference(shape, constants.get(tensor.name!) ?? feeds[tensor.name!]!.data);
    if (tensor.op === 'constant') return toReference(shape, tensor.data!);
    const inputs = tensor.inputs.map((item) => values.get(item.id)!);
    return { shape, data: ops[tensor.op].compute(inputs, tensor.attributes, shape) };
  };
  for (const tensor of [...graph.inputs, ...graph.nodes]) {
    values.set(tensor.id, compute(tensor, bindShape(tensor.shape, bindings)));
  }
  return Object.fromEntries(
    fetches.map((name) => [name, fromReference(graph.outputs[name]!.dtype, values.get(graph.outputs[name]!.id)!)]),
  );
}

/** float32 results come as Float64Array, unrounded. */
export function createReferenceRuntime(): Runtime {
  return {
    compile: async (graph, { constants = new Map() } = {}) => {
      checkConstants(graph, constants);
      return {
        run: async (feeds, fetches = Object.keys(graph.outputs)) => evaluate(graph, feeds, fetches, constants),
        dispose: async () => {},
      };
    },
  };
}
