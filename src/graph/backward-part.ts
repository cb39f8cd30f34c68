/**
 * The backward pass of a part of a model as a graph of its own. Layer 1.
 * What it reads of the forward pass it computes again from the part's inputs, or it is fed with what `isKept` chooses, which the forward
 * graph then has as outputs.
 */
import { pullback } from './backward.ts';
import { type Graph, input, makeGraph, type Tensor, withInputs } from './builder.ts';

export interface PartGraphs {
  /** The outputs, and `kept.0`, `kept.1`, … */
  readonly forward: Graph;
  /** Reads `d.NAME` for each output and what the forward pass reads; gives `d.NAME` for each of `wrt`. Null if `wrt` is empty. */
  readonly backward: Graph | null;
  readonly kept: readonly string[];
}

/** Throws ConfigError as `pullback` does. */
export function splitPart(
  outputs: Readonly<Record<string, Tensor>>,
  wrt: ReadonlyMap<string, Tensor>,
  isKept: (tensor: Tensor) => boolean,
): PartGraphs {
  if (wrt.size === 0) return { forward: makeGraph(outputs), backward: null, kept: [] };
  const names = Object.keys(outputs);
  const cotangents = names.map((name) => input(`d.${name}`, outputs[name]!.shape));
  const lastForward = Math.max(...cotangents.map(({ id }) => id));
  const gradients = pullback(Object.values(outputs), cotangents, [...wrt.values()]);
  const kept: Record<string, Tensor> = {};
  const rebuilt = new Map<number, Tensor>();
  const rebuild = (tensor: Tensor): Tensor => {
    const known = rebuilt.get(tensor.id);
    if (known) return known;
    let result = tensor;
    if (tensor.op !== 'input' && tensor.op !== 'constant') {
      if (tensor.id < lastForward && isKept(tensor)) {
        const name = `kept.${Object.keys(kept).length}`;
        kept[name] = tensor;
        result = input(name, tensor.shape);
      } else result = withInputs(tensor, tensor.inputs.map(rebuild));
    }
    rebuilt.set(tensor.id, result);
    return result;
  };
  const results = [...wrt.keys()].map((name, i): [string, Tensor] => [`d.${name}`, rebuild(gradients[i]!)]);
  return {
    forward: makeGraph({ ...outputs, ...kept }),
    backward: makeGraph(Object.fromEntries(results)),
    kept: Object.keys(kept),
  };
}
