/**
 * Forward, backward and update of one model: gradients of many microbatches add up, then one AdamW update. Layer 3.
 * The whole forward and backward pass is one graph per loss; weights are graph inputs, so nothing is copied or compiled again when
 * they change.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';
import { gradients } from '../graph/backward.ts';
import {
  exp,
  type Graph,
  input,
  makeGraph,
  mul,
  neg,
  reduceSum,
  sub,
  type Tensor,
  takeAlongLast,
} from '../graph/builder.ts';
import { type Executable, type HostTensor, hostTensor, type Runtime } from '../graph/runtime.ts';
import { declareDecoder, declareInputs, decoderHidden, decoderLogprobs, withoutCache } from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import type { Parameter } from '../nn/parameters.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import { cispoLoss, crossEntropyLoss, entropySum, type LossInputs, ppoLoss, type TokenInputs } from './loss.ts';
import { createMicrobatches, type Microbatch, type MicrobatchOptions, type TrainingSequence } from './microbatch.ts';
import { type AdamWSettings, type AdamWState, adamWUpdate, createAdamWState } from './optimizer.ts';

export type LossSpec =
  | {
      readonly name: 'cispo' | 'ppo';
      readonly clipLow: number;
      readonly clipHigh: number;
      readonly entropyBonus?: number;
    }
  | { readonly name: 'crossEntropy' };

/** `parameters` holds the base model; `trained` the adapter, or the very same map in full-parameter training. */
export interface TrainerOptions {
  readonly config: DecoderConfig;
  readonly lora: LoraSpec | null;
  readonly parameters: ReadonlyMap<string, Parameter>;
  readonly trained: ReadonlyMap<string, Parameter>;
  /** Those of `parameters` that become constants of the compiled graphs; never among `trained`. */
  readonly baked: ReadonlyMap<string, Parameter>;
  readonly runtime: Runtime;
  /** Tokens of one microbatch, padding included. */
  readonly microbatchTokens: number;
}

export interface ForwardBackwardStats {
  readonly loss: number;
  /** Per sequence, length T; 0 where the action mask is 0. */
  readonly trainingLogprobs: readonly (readonly number[])[];
  /** Mean over action tokens, nats. */
  readonly entropy: number;
  readonly actionTokens: number;
  readonly tokens: number;
  readonly paddingTokens: number;
  readonly packedRows: number;
}

type GraphKind = LossSpec['name'] | 'logprobs';

const GRADIENT_PREFIX = 'gradient/';

/** Calls must not overlap. Graphs are compiled at their first use and kept. */
export class Trainer {
  readonly #options: TrainerOptions;
  readonly #fixedFeeds: Record<string, HostTensor>;
  readonly #executables = new Map<GraphKind, Promise<Executable>>();
  #gradients: Map<string, Float32Array> | null = null;
  #optimizer: AdamWState;

  constructor(options: TrainerOptions) {
    this.#options = options;
    this.#optimizer = createAdamWState(options.trained);
    this.#fixedFeeds = createRopeFeeds(options.config);
    for (const parameters of [options.parameters, options.trained]) {
      for (const [name, { data, shape }] of parameters) {
        if (!options.baked.has(name)) this.#fixedFeeds[name] = hostTensor(data, shape);
      }
    }
  }

  /** The weights being trained; owned by the trainer and changed in place by `update`. */
  get trained(): ReadonlyMap<string, Parameter> {
    return this.#options.trained;
  }

  get optimizer(): AdamWState {
    return this.#optimizer;
  }

  /** Takes over saved optimizer state and drops accumulated gradients. */
  restoreOptimizer(state: AdamWState): void {
    this.#optimizer = state;
    this.#gradients = null;
  }

  /** Adds `scale` × the gradient of the summed token losses to what has accumulated. Throws DataError if no token is an action. */
  async forwardBackward(
    sequences: readonly TrainingSequence[],
    loss: LossSpec,
    scale: number,
  ): Promise<ForwardBackwardStats> {
    if (!Number.isFinite(scale)) throw new ConfigError(`forwardBackward: scale must be finite, got ${scale}`);
    checkLoss(loss);
    const microbatches = createMicrobatches(sequences, this.#microbatchOptions());
    const trainingLogprobs = sequences.map((sequence) => new Array<number>(sequence.tokenIds.length).fill(0));
    const totals = { loss: 0, entropy: 0, actionTokens: 0, tokens: 0, paddingTokens: 0, packedRows: 0 };
    if (!microbatches.some(({ places }) => places.length > 0)) {
      throw new DataError('forwardBackward: at least one token must have actionMask 1, got none');
    }
    const executable = await this.#executable(loss.name);
    for (const microbatch of microbatches) {
      const results = await this.#runOrDrop(executable, this.#feeds(microbatch, loss, scale));
      this.#accumulate(results);
      scatterLogprobs(microbatch, results.logprobs!, trainingLogprobs);
      totals.loss += results.loss!.data[0] as number;
      totals.entropy += results.entropy!.data[0] as number;
      totals.actionTokens += microbatch.places.length;
      totals.tokens += microbatch.tokens;
      totals.paddingTokens += microbatch.paddingTokens;
      totals.packedRows += microbatch.rows;
    }
    return { ...totals, entropy: totals.entropy / totals.actionTokens, trainingLogprobs };
  }

  /** Logprob of each token but the first (whose entry is 0) at one temperature, under the weights being trained. */
  async logprobs(tokenIds: readonly number[], temperature: number): Promise<number[]> {
    const sequence: TrainingSequence = {
      tokenIds,
      actionMask: tokenIds.map((_, t) => (t === 0 ? 0 : 1)),
      samplingLogprobs: tokenIds.map(() => 0),
      advantages: tokenIds.map(() => 0),
      temperatures: tokenIds.map(() => temperature),
    };
    const [microbatch] = createMicrobatches([sequence], this.#microbatchOptions());
    const executable = await this.#executable('logprobs');
    const { actions, samplingLogprobs, advantages, tokenWeights, ...feeds } = microbatch!.feeds;
    const results = await executable.run({ ...this.#fixedFeeds, ...feeds });
    const logprobs = [new Array<number>(tokenIds.length).fill(0)];
    scatterLogprobs(microbatch!, results.logprobs!, logprobs);
    return logprobs[0]!;
  }

  /**
   * One AdamW update with the accumulated gradients; returns the global gradient norm before clipping. The gradients are gone
   * afterwards, even if it throws: what is not finite must not spoil the next batch.
   */
  update(settings: AdamWSettings): number {
    const gradients = this.#gradients;
    if (!gradients) throw new ConfigError('update: must follow at least one forwardBackward, got none');
    this.#gradients = null;
    return adamWUpdate(this.#options.trained, gradients, this.#optimizer, settings);
  }

  #microbatchOptions(): MicrobatchOptions {
    const { config, microbatchTokens } = this.#options;
    return {
      queriesPerKey: config.heads / config.kvHeads,
      layers: config,
      headSize: config.headSize,
      maxTokens: microbatchTokens,
      maxPositions: config.maxPositions,
      vocabSize: config.vocabSize,
    };
  }

  #feeds(microbatch: Microbatch, loss: LossSpec, scale: number): Record<string, HostTensor> {
    const { samplingLogprobs, advantages, tokenWeights, actions, ...shared } = microbatch.feeds;
    const tokenWeight = tokenWeights!.data as Float32Array;
    const weights = {
      ...actions!,
      data: (actions!.data as Float32Array).map((action, i) => action * tokenWeight[i]! * scale),
    };
    const feeds = { ...this.#fixedFeeds, ...shared, actions: actions!, weights };
    if (loss.name === 'crossEntropy') return feeds;
    return {
      ...feeds,
      samplingLogprobs: samplingLogprobs!,
      advantages: advantages!,
      clipLow: hostTensor(Float32Array.of(loss.clipLow), []),
      clipHigh: hostTensor(Float32Array.of(loss.clipHigh), []),
      entropyBonus: hostTensor(Float32Array.of(loss.entropyBonus ?? 0), []),
    };
  }

  /** A batch whose gradients are there in part must not be trained on. */
  async #runOrDrop(executable: Executable, feeds: Record<string, HostTensor>): Promise<Record<string, HostTensor>> {
    try {
      return await executable.run(feeds);
    } catch (error) {
      this.#gradients = null;
      throw error;
    }
  }

  #accumulate(results: Readonly<Record<string, HostTensor>>): void {
    const isFirst = this.#gradients === null;
    this.#gradients ??= new Map();
    for (const name of this.#options.trained.keys()) {
      const gradient = results[GRADIENT_PREFIX + name]!.data as Float32Array;
      if (isFirst) {
        this.#gradients.set(name, gradient);
        continue;
      }
      const sum = this.#gradients.get(name)!;
      for (let i = 0; i < sum.length; i++) sum[i]! += gradient[i]!;
    }
  }

  #executable(kind: GraphKind): Promise<Executable> {
    let executable = this.#executables.get(kind);
    if (!executable) {
      const { config, lora, trained, runtime, baked } = this.#options;
      const constants = new Map([...baked].map(([name, { data }]) => [name, data]));
      executable = runtime.compile(trainingGraph(config, lora, kind, [...trained.keys()]), { constants });
      this.#executables.set(kind, executable);
    }
    return executable;
  }
}

function checkLoss(loss: LossSpec): void {
  switch (loss.name) {
    case 'crossEntropy':
      return;
    case 'cispo':
    case 'ppo':
      for (const [name, value] of Object.entries({ ...loss, name: 0 })) {
        if (!Number.isFinite(value)) throw new ConfigError(`loss: ${name} must be finite, got ${value}`);
      }
      return;
    default:
      throw new ConfigError(
        `loss: name must be cispo, ppo or crossEntropy, got '${(loss satisfies never as LossSpec).name}'`,
      );
  }
}

function scatterLogprobs(microbatch: Microbatch, logprobs: HostTensor, into: readonly number[][]): void {
  for (const [i, { index, position }] of microbatch.places.entries()) {
    into[index]![position] = logprobs.data[i] as number;
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
  const inputs = declareInputs(config, 'T');
  const column = (name: string): Tensor => input(name, ['M', 1]);
  const hidden = decoderHidden(model, inputs, withoutCache);
  const distribution = decoderLogprobs(
    model,
    hidden,
    input('logitRows', ['M'], 'int64'),
    column('inverseTemperatures'),
  );
  const logprobs = takeAlongLast(distribution, input('targets', ['M', 1], 'int64'));
  if (kind === 'logprobs') return makeGraph({ logprobs });
  const weights = column('weights');
  const entropies = neg(reduceSum(mul(exp(distribution), distribution), [1], true)); // [M, 1]
  const loss = buildLoss(kind, { trainingLogprobs: logprobs, weights, entropies }, column);
  const outputs: Record<string, Tensor> = {
    loss,
    logprobs,
    entropy: reduceSum(mul(entropies, column('actions')), [0, 1]),
  };
  const trained = trainedNames.map((name) => model.parameters.get(name)!);
  for (const [i, gradient] of gradients(loss, trained).entries())
    outputs[GRADIENT_PREFIX + trainedNames[i]!] = gradient;
  return makeGraph(outputs);
}

function buildLoss(
  name: LossSpec['name'],
  tokens: TokenInputs & { readonly entropies: Tensor },
  column: (name: string) => Tensor,
): Tensor {
  if (name === 'crossEntropy') return crossEntropyLoss(tokens);
  const inputs: LossInputs = {
    ...tokens,
    samplingLogprobs: column('samplingLogprobs'),
    advantages: column('advantages'),
  };
  const clip = { clipLow: input('clipLow', []), clipHigh: input('clipHigh', []) };
  const policyLoss = name === 'cispo' ? cispoLoss(inputs, clip) : ppoLoss(inputs, clip);
  return sub(policyLoss, mul(input('entropyBonus', []), entropySum(tokens)));
}
