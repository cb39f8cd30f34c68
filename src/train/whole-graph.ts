/**
 * Forward and backward pass of a microbatch as one graph: nothing is computed twice, and what the backward pass reads stays in memory.
 * Layer 3.
 */

import type { DecoderConfig } from '../formats/hf-config.ts';
import { gradients } from '../graph/backward.ts';
import { type Graph, input, makeGraph, type Tensor } from '../graph/builder.ts';
import { type Executable, type HostTensor, hostTensor } from '../graph/runtime.ts';
import { declareDecoder, declareInputs, decoderHidden, decoderLogprobs, withoutCache } from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import {
  column,
  feedLoss,
  feedTargets,
  type GraphKind,
  type LossSpec,
  lossKind,
  lossOutputs,
  targetLogprobs,
} from './loss-graph.ts';
import type { Microbatch } from './microbatch.ts';
import type { ModelParts, PassResult, TrainedWeights } from './passes.ts';

const GRADIENT_PREFIX = 'gradient/';

/** Graphs are compiled at their first use and kept. Weights are fed unless they are baked, so nothing is copied when they change. */
export class WholeGraph {
  readonly #model: ModelParts;
  readonly #fixedFeeds: Record<string, HostTensor>;
  readonly #executables = new Map<GraphKind, Promise<Executable>>();

  constructor(model: ModelParts) {
    this.#model = model;
    this.#fixedFeeds = createRopeFeeds(model.config);
    for (const parameters of [model.parameters, model.trained]) {
      for (const [name, { data, shape }] of parameters) {
        if (!model.baked.has(name)) this.#fixedFeeds[name] = hostTensor(data, shape);
      }
    }
  }

  async train(microbatch: Microbatch, loss: LossSpec, scale: number): Promise<PassResult> {
    const executable = await this.#executable(lossKind(loss));
    const results = await executable.run({ ...this.#fixedFeeds, ...feedLoss(microbatch.feeds, loss, scale) });
    const gradientOf = (name: string): Float32Array => results[GRADIENT_PREFIX + name]!.data as Float32Array;
    return {
      loss: results.loss!.data[0] as number,
      entropy: results.entropy!.data[0] as number,
      logprobs: results.logprobs!.data as Float32Array,
      gradients: new Map([...this.#model.trained.keys()].map((name) => [name, gradientOf(name)])),
    };
  }

  /** Logprobs of the microbatch's places, in order; `weights` stand in for the trained ones. */
  async score(microbatch: Microbatch, weights?: TrainedWeights): Promise<Float32Array> {
    const executable = await this.#executable('logprobs');
    const given = [...(weights ?? [])].map(([name, { data, shape }]) => [name, hostTensor(data, shape)] as const);
    const fixed = weights === undefined ? this.#fixedFeeds : { ...this.#fixedFeeds, ...Object.fromEntries(given) };
    const results = await executable.run({ ...fixed, ...feedTargets(microbatch.feeds) });
    return results.logprobs!.data as Float32Array;
  }

  #executable(kind: GraphKind): Promise<Executable> {
    let executable = this.#executables.get(kind);
    if (!executable) {
      const { config, lora, trained, runtime, baked } = this.#model;
      const constants = new Map([...baked].map(([name, { data }]) => [name, data]));
      const graph = trainingGraph(config, lora, kind, [...trained.keys()]);
      // A quarter of a step of 135 million parameters would go to the kernel, which clears memory that is new.
      const memory = kind === 'logprobs' ? {} : { isKeepingMemory: true };
      executable = runtime.compile(graph, { constants, ...memory });
      this.#executables.set(kind, executable);
    }
    return executable;
  }

  /** Gives back the memory that training keeps from one run to the next, and with it the compiled graphs. No run may be in flight. */
  async release(): Promise<void> {
    for (const [kind, executable] of this.#executables) {
      if (kind === 'logprobs') continue;
      this.#executables.delete(kind);
      await (await executable).dispose();
    }
  }
}

/** The graph of one microbatch: logprobs of the targets [M, 1] and, with a loss, its value, the entropy sum and every gradient. */
export function trainingGraph(
  config: DecoderConfig,
  lora: LoraSpec | null,
  kind: GraphKind,
  trainedNames: readonly string[],
): Graph {
  const model = declareDecoder(config, lora);
  const hidden = decoderHidden(model, declareInputs(config, 'T'), withoutCache, input('logitRows', ['M'], 'int64'));
  const distribution = decoderLogprobs(model, hidden, null, column('inverseTemperatures'));
  if (kind === 'logprobs') return makeGraph({ logprobs: targetLogprobs(distribution) });
  const outputs: Record<string, Tensor> = lossOutputs(kind, distribution);
  const trained = trainedNames.map((name) => model.parameters.get(name)!);
  for (const [i, gradient] of gradients(outputs.loss!, trained).entries()) {
    outputs[GRADIENT_PREFIX + trainedNames[i]!] = gradient;
  }
  return makeGraph(outputs);
}
