/**
 * Lanes: threads that each compute whole microbatches of a small model side by side. Layer 3.
 * Small operators do not split over threads well: two lanes of one thread are faster than one graph on two threads. Which lane computes
 * a microbatch changes no bit of it, and the trainer adds gradients up in the order of microbatches.
 */
import { Worker } from 'node:worker_threads';
import { EngineError } from '../core/errors.ts';
import { constant, makeGraph, neg } from '../graph/builder.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import type { Parameter } from '../nn/parameters.ts';
import type { LossSpec } from './loss-graph.ts';
import type { ModelParts, PassResult, TrainedWeights } from './passes.ts';
import type { Unit } from './plan.ts';

export interface LaneModel extends Pick<ModelParts, 'config' | 'lora'> {
  readonly parameters: ReadonlyMap<string, Parameter>;
  readonly baked: readonly string[];
  /** Names of `parameters` where those are trained themselves. */
  readonly trained: ReadonlyMap<string, Parameter> | 'parameters';
  readonly threads: number;
}

export type LaneCall =
  | { readonly name: 'start'; readonly model: LaneModel }
  | { readonly name: 'weights'; readonly trained: ReadonlyMap<string, Float32Array> }
  | { readonly name: 'run'; readonly unit: Unit; readonly loss: LossSpec; readonly scale: number }
  | { readonly name: 'score'; readonly unit: Unit };

export type LaneAnswer =
  | { readonly ok: true; readonly result: PassResult | Float32Array | null; readonly isFlushing: boolean }
  | { readonly ok: false; readonly message: string };

/** Whether this thread counts numbers below 1.2e-38 as zero, as ONNX Runtime is told to: without it softmax has other bits. */
export function isFlushing(): boolean {
  return Number.MIN_VALUE * Math.max(1, performance.now()) === 0;
}

class Lane {
  readonly #worker = new Worker(new URL('./lane-thread.js', import.meta.url));
  #settle: { resolve: (answer: LaneAnswer) => void; reject: (error: Error) => void } | null = null;
  #failure: Error | null = null;

  constructor() {
    this.#worker.unref(); // An idle lane does not keep the process.
    this.#worker.on('message', (answer: LaneAnswer) => this.#settle?.resolve(answer));
    this.#worker.on('error', (error) => {
      this.#failure = error;
      this.#settle?.reject(error);
    });
  }

  /** One call at a time. */
  async call(call: LaneCall): Promise<LaneAnswer & { readonly ok: true }> {
    if (this.#failure) throw new EngineError(`trainer lane: must be alive, got ${this.#failure.message}`);
    this.#worker.ref();
    try {
      const answer = await new Promise<LaneAnswer>((resolve, reject) => {
        this.#settle = { resolve, reject };
        this.#worker.postMessage(call);
      });
      if (answer.ok) return answer;
      throw new EngineError(`trainer lane: ${answer.message}`);
    } finally {
      this.#settle = null;
      this.#worker.unref();
    }
  }
}

/** Started lanes; a run takes the first that is idle. */
export class Lanes {
  readonly #idle: Lane[];
  readonly #waiting: ((lane: Lane) => void)[] = [];
  readonly count: number;

  private constructor(lanes: Lane[]) {
    this.#idle = lanes;
    this.count = lanes.length;
  }

  /** Null if lanes cannot be started so that they give the bits of this thread. */
  static async start(model: LaneModel, count: number): Promise<Lanes | null> {
    // The first session of a process sets how its thread treats small numbers; threads that start from it inherit that.
    const executable = await (await createOrtRuntime({ threads: 1 })).compile(makeGraph({ y: neg(constant(1)) }));
    await executable.dispose();
    const lanes = Array.from({ length: count }, () => new Lane());
    const answers = await Promise.all(lanes.map((lane) => lane.call({ name: 'start', model })));
    return answers.every((answer) => answer.isFlushing === isFlushing()) ? new Lanes(lanes) : null;
  }

  /** Gives every lane the weights that the next runs use. No run may be in flight. */
  async setWeights(trained: TrainedWeights): Promise<void> {
    const weights = new Map([...trained].map(([name, { data }]) => [name, data]));
    await Promise.all(this.#idle.map((lane) => lane.call({ name: 'weights', trained: weights })));
  }

  async run(unit: Unit, loss: LossSpec, scale: number): Promise<PassResult> {
    return (await this.#callIdle({ name: 'run', unit, loss, scale })) as PassResult;
  }

  /** Logprobs of the unit's places, in order. */
  async score(unit: Unit): Promise<Float32Array> {
    return (await this.#callIdle({ name: 'score', unit })) as Float32Array;
  }

  async #callIdle(call: LaneCall): Promise<PassResult | Float32Array | null> {
    const lane = this.#idle.pop() ?? (await new Promise<Lane>((resolve) => this.#waiting.push(resolve)));
    try {
      return (await lane.call(call)).result;
    } finally {
      const next = this.#waiting.shift();
      if (next) next(lane);
      else this.#idle.push(lane);
    }
  }
}
