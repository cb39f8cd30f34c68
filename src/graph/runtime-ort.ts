/**
 * The fast executor: ONNX Runtime's CPU provider through `onnxruntime-node`, an optional dependency. Layer 1.
 * `run` blocks the thread that calls it until the graph has run, though it returns a promise.
 *
 * Numbers below 1.2e-38 count as zero: the exponentials of masked scores are such numbers, on which x64 is 4 times as slow
 * (softmax over 256 keys with a causal mask: 8.0 ms, without such numbers 1.9 ms). ONNX Runtime sets its own threads, and the thread
 * that creates the first session of the process, JavaScript included; threads started from there inherit it.
 */

import type { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { ConfigError } from '../core/errors.ts';
import { outputValueName, writeOnnxModel } from './onnx.ts';
import { bindFeeds, checkConstants, type Feeds, type HostTensor, type Runtime } from './runtime.ts';

export interface OrtRuntimeOptions {
  /** Threads inside one operator. */
  readonly threads: number;
  /**
   * Idle threads spin for work instead of sleeping. False when left out: on graphs of 500 small nodes the best runs
   * were within 5 % of each other, and where other processes want the cores spinning takes 2 to 3 times as long. Not
   * measured on an idle machine.
   */
  readonly isSpinning?: boolean;
  /**
   * Sessions keep the memory of a run for the next one. True when left out. Without it a training step of a 135 M model takes 1.3 GB less
   * and about 5 % more time: every session that ran holds what its largest run needed, rounded up.
   */
  readonly isKeepingMemory?: boolean;
}

type OrtModule = typeof import('onnxruntime-node');

async function loadOrt(): Promise<OrtModule> {
  try {
    return await import('onnxruntime-node');
  } catch (cause) {
    throw new ConfigError(
      'createOrtRuntime: the embedded engine needs the package onnxruntime-node, which could not be loaded; run: npm install --ignore-scripts onnxruntime-node@1.30.0',
      { cause },
    );
  }
}

function sessionOptions({
  threads,
  isSpinning = false,
  isKeepingMemory = true,
}: OrtRuntimeOptions): InferenceSession.SessionOptions {
  return {
    executionProviders: ['cpu'],
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    executionMode: 'sequential',
    enableCpuMemArena: isKeepingMemory,
    // Sampler and trainer must keep the same operators. 'basic' and 'all' showed no clear
    // gain on a training graph (measured on a busy machine), and the same bits.
    graphOptimizationLevel: 'disabled',
    logSeverityLevel: 3,
    // The binding joins the keys with dots: session.intra_op.allow_spinning.
    extra: { session: { set_denormal_as_zero: '1', intra_op: { allow_spinning: isSpinning ? '1' : '0' } } },
  };
}

/** Throws ConfigError if `threads` is out of range or onnxruntime-node is not there. */
export async function createOrtRuntime(options: OrtRuntimeOptions): Promise<Runtime> {
  if (!(Number.isInteger(options.threads) && options.threads >= 1)) {
    throw new ConfigError(`createOrtRuntime: threads must be a whole number of at least 1, got ${options.threads}`);
  }
  const ort = await loadOrt();
  const wrap = ({ dtype, shape, data }: HostTensor): OrtTensor => {
    if (data instanceof Float64Array) return new ort.Tensor('float32', Float32Array.from(data), shape);
    if (data instanceof Float32Array) return new ort.Tensor('float32', data, shape); // not copied
    return data instanceof BigInt64Array ? new ort.Tensor('int64', data, shape) : new ort.Tensor(dtype, data, shape);
  };
  const wrapped = new WeakMap<HostTensor, OrtTensor>();
  const toOrt = (tensor: HostTensor): OrtTensor => {
    const known = wrapped.get(tensor);
    if (known) return known;
    const made = wrap(tensor);
    if (!(tensor.data instanceof Float64Array)) wrapped.set(tensor, made); // A copy would not follow its original.
    return made;
  };
  const fromOrt = ({ type, dims, data }: OrtTensor): HostTensor => ({
    dtype: type as HostTensor['dtype'],
    shape: dims,
    data: data as Float32Array | BigInt64Array | Uint8Array,
  });
  return {
    compile: async (graph, { constants = new Map(), precision = 'float32', ...memory } = {}) => {
      checkConstants(graph, constants);
      const session = await ort.InferenceSession.create(
        writeOnnxModel(graph, constants, precision).bytes,
        sessionOptions({ ...options, ...memory }),
      );
      const names = Object.keys(graph.outputs);
      const run = async (feeds: Feeds, fetches: readonly string[] = names): Promise<Record<string, HostTensor>> => {
        bindFeeds(graph, feeds, constants);
        const ortFeeds: Record<string, OrtTensor> = {};
        for (const name in feeds) ortFeeds[name] = toOrt(feeds[name]!);
        const results = await session.run(ortFeeds, fetches.map(outputValueName));
        return Object.fromEntries(fetches.map((name) => [name, fromOrt(results[outputValueName(name)]! as OrtTensor)]));
      };
      return { run, dispose: () => session.release() };
    },
  };
}
