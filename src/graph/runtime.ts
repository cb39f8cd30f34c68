/**
 * What runs a graph: the interface of the executors and the check of what is fed to them. Layer 1.
 */

import { ConfigError, ShapeError } from '../core/errors.ts';
import type { Dtype, Graph, Tensor } from './builder.ts';
import type { GraphConstants, Precision } from './onnx.ts';
import { bindShape, formatShape, matchShape } from './sizes.ts';

/** A tensor with its values. The reference executor returns float32 tensors as Float64Array. */
export interface HostTensor {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly data: Float32Array | Float64Array | BigInt64Array | Uint8Array;
}

export type Feeds = Readonly<Record<string, HostTensor>>;

export interface Executable {
  /**
   * Runs once and returns the outputs named in `fetches`, all when left out. The feeds stay the caller's; they must not change until the
   * promise settles. A tensor that is fed again costs less than a new one of the same data: its fit is checked once. Throws
   * ConfigError for a missing or unknown input and ShapeError for a dtype or shape that does not fit.
   */
  run(feeds: Feeds, fetches?: readonly string[]): Promise<Record<string, HostTensor>>;
  dispose(): Promise<void>;
}

export interface CompileOptions {
  /** Values of inputs that are then no longer fed. Copied. */
  readonly constants?: GraphConstants;
  /** 'float32' when left out. With 'int8' a row depends on the other rows of its run; the reference executor always is exact. */
  readonly precision?: Precision;
  /** Whether memory of a run is kept for the next one; the runtime's own choice when left out. */
  readonly isKeepingMemory?: boolean;
}

export interface Runtime {
  compile(graph: Graph, options?: CompileOptions): Promise<Executable>;
}

function isArrayOf(dtype: Dtype, data: HostTensor['data']): boolean {
  if (dtype === 'float32') return data instanceof Float32Array || data instanceof Float64Array;
  return dtype === 'int64' ? data instanceof BigInt64Array : data instanceof Uint8Array;
}

function checkFeed(tensor: Tensor, feed: HostTensor): void {
  const what = `input '${tensor.name}'`;
  if (feed.dtype !== tensor.dtype || !isArrayOf(tensor.dtype, feed.data)) {
    throw new ShapeError(
      `${what}: dtype must be ${tensor.dtype}, got ${feed.dtype} in a ${feed.data.constructor.name}`,
    );
  }
  if (feed.shape.length !== tensor.shape.length) {
    throw new ShapeError(`${what}: shape must be ${formatShape(tensor.shape)}, got ${formatShape(feed.shape)}`);
  }
  const count = feed.shape.reduce((product, size) => product * size, 1);
  if (feed.data.length !== count) {
    throw new ShapeError(`${what}: ${formatShape(feed.shape)} must hold ${count} values, got ${feed.data.length}`);
  }
}

/** What is fed to a graph, and what of it was checked before. */
interface Fed {
  readonly names: ReadonlySet<string>;
  /** Plain symbols first, so that products are checked against them. */
  readonly tensors: readonly Tensor[];
  /** By name: the tensor of fixed sizes that was found to fit. */
  readonly checked: Map<string, HostTensor>;
}

const fedOf = new WeakMap<Graph, WeakMap<GraphConstants, Fed>>();
const noConstants: GraphConstants = new Map();

function inspectFed(graph: Graph, constants: GraphConstants): Fed {
  const known = fedOf.get(graph)?.get(constants);
  if (known) return known;
  const tensors = graph.inputs.filter((tensor) => !constants.has(tensor.name!));
  const hasProduct = (tensor: Tensor): number => Number(tensor.shape.some((dim) => String(dim).includes('*')));
  const fed: Fed = {
    names: new Set(tensors.map((tensor) => tensor.name!)),
    tensors: tensors.sort((a, b) => hasProduct(a) - hasProduct(b)),
    checked: new Map(),
  };
  const byConstants = fedOf.get(graph) ?? new WeakMap<GraphConstants, Fed>();
  fedOf.set(graph, byConstants.set(constants, fed));
  return fed;
}

/** Checks feeds against the inputs of a graph and returns the values of its symbols. */
export function bindFeeds(
  graph: Graph,
  feeds: Feeds,
  constants: GraphConstants = noConstants,
): Readonly<Record<string, number>> {
  const { names, tensors, checked } = inspectFed(graph, constants);
  for (const name of Object.keys(feeds)) {
    if (!names.has(name)) throw new ConfigError(`feeds: must be inputs of the graph (${[...names]}), got '${name}'`);
  }
  const bindings: Record<string, number> = {};
  for (const tensor of tensors) {
    const feed = feeds[tensor.name!];
    if (feed === undefined) throw new ConfigError(`feeds: every input must be fed, got no '${tensor.name}'`);
    if (checked.get(tensor.name!) === feed) continue;
    checkFeed(tensor, feed);
    if (matchShape(tensor.shape, feed.shape, bindings) < 0) {
      if (tensor.shape.every((dim) => typeof dim === 'number')) checked.set(tensor.name!, feed);
      continue;
    }
    const known = Object.entries(bindings).map(([symbol, value]) => `${symbol} = ${value}`);
    const where = known.length === 0 ? '' : ` where ${known.join(', ')}`;
    throw new ShapeError(
      `input '${tensor.name}': shape must be ${formatShape(tensor.shape)}${where}, got ${formatShape(feed.shape)}`,
    );
  }
  return bindings;
}

/** Checks that constants name inputs of fixed sizes and hold as many values. */
export function checkConstants(graph: Graph, constants: GraphConstants): void {
  for (const [name, data] of constants) {
    const tensor = graph.inputs.find((item) => item.name === name);
    if (tensor === undefined) throw new ConfigError(`constants: must be inputs of the graph, got '${name}'`);
    checkFeed(tensor, { dtype: tensor.dtype, shape: bindShape(tensor.shape, {}), data });
  }
}

/** A float32 tensor; the data is not copied. */
export function hostTensor(data: Float32Array | Float64Array, shape: readonly number[]): HostTensor {
  return { dtype: 'float32', shape, data };
}

/** An int64 tensor of these whole numbers. */
export function hostIds(ids: ArrayLike<number>, shape: readonly number[] = [ids.length]): HostTensor {
  return { dtype: 'int64', shape, data: BigInt64Array.from(Array.from(ids), BigInt) };
}
