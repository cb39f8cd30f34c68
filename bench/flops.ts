/**
 * Floating-point operations of the matrix products that a graph executes: 2·m·n·k for each, from the sizes that were fed.
 * Everything else (softmax, norms, additions) counts as nothing, so the share of the matrix-product ceiling cannot flatter.
 */
import type { Graph, Tensor } from '../src/graph/builder.ts';
import { bindFeeds, type Runtime } from '../src/graph/runtime.ts';
import { bindShape, type SizeBindings } from '../src/graph/sizes.ts';

/** The matmul nodes of a graph without repeats: the ONNX writer writes equal nodes once. */
export function distinctMatmuls(graph: Graph): Tensor[] {
  const keys = new Map<number, string>();
  const seen = new Map<string, number>();
  const matmuls: Tensor[] = [];
  for (const tensor of graph.inputs) keys.set(tensor.id, `in ${tensor.name}`);
  for (const tensor of graph.nodes) {
    const inputs = tensor.inputs.map((item) => keys.get(item.id));
    const data = tensor.data && Array.from(tensor.data, String).join();
    const key = JSON.stringify([tensor.op, inputs, tensor.attributes, data, tensor.shape]);
    const known = seen.get(key);
    if (known === undefined) {
      seen.set(key, seen.size);
      if (tensor.op === 'matmul' || tensor.op === 'matmulAdd') matmuls.push(tensor);
    }
    keys.set(tensor.id, `#${known ?? seen.size - 1}`);
  }
  return matmuls;
}

/** Operations of one run with these sizes. */
export function countMatmulFlops(graph: Graph, bindings: SizeBindings): number {
  return distinctMatmuls(graph).reduce((total, { shape, inputs, attributes }) => {
    const a = bindShape(inputs[0]!.shape, bindings);
    const inner = a.at(attributes.transA ? -2 : -1)!;
    return total + 2 * inner * bindShape(shape, bindings).reduce((product, size) => product * size, 1);
  }, 0);
}

export interface FlopCounter {
  readonly runtime: Runtime;
  /** Operations of all runs inside `work`, which must not be measured: counting takes time. */
  readonly count: (work: () => Promise<unknown>) => Promise<number>;
}

/** A runtime that knows what its graphs compute. */
export function createFlopCounter(runtime: Runtime): FlopCounter {
  let total: number | null = null;
  return {
    runtime: {
      compile: async (graph, options) => {
        const executable = await runtime.compile(graph, options);
        return {
          dispose: () => executable.dispose(),
          run: (feeds, fetches) => {
            if (total !== null) total += countMatmulFlops(graph, bindFeeds(graph, feeds, options?.constants));
            return executable.run(feeds, fetches);
          },
        };
      },
    },
    count: async (work) => {
      total = 0;
      await work();
      const counted = total;
      total = null;
      return counted;
    },
  };
}
