/**
 * Forward, backward and update of one model: gradients of many microbatches add up, then one AdamW update. Layer 3.
 * `plan.ts` decides how a microbatch is computed; every way gives the same logprobs, bit for bit.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import type { Lanes } from './lanes.ts';
import { Layered } from './layered.ts';
import { checkLoss, type LossSpec } from './loss-graph.ts';
import type { TokenPlace, TrainingSequence } from './microbatch.ts';
import { defaultActivationBytes } from './model-sizing.ts';
import { type AdamWSettings, type AdamWState, adamWUpdate, createAdamWState } from './optimizer.ts';
import type { ModelParts, PassResult, TrainedWeights } from './passes.ts';
import { type ActivationRecomputation, type PlanOptions, planUnits, type Unit } from './plan.ts';
import { WholeGraph } from './whole-graph.ts';

export type { LossSpec } from './loss-graph.ts';
export type { ActivationRecomputation } from './plan.ts';
export { trainingGraph } from './whole-graph.ts';

export interface TrainerOptions extends ModelParts {
  /** Tokens of one microbatch, padding included. */
  readonly microbatchTokens: number;
  /** Threads that compute microbatches side by side; they hold this very model. None: microbatches run here, one after the other. */
  readonly lanes?: Lanes | null;
  /** `auto` when left out. */
  readonly activationRecomputation?: ActivationRecomputation;
  /** What activations may take, bytes; 1.5 GB when left out. */
  readonly activationBytes?: number;
}

export interface ForwardBackwardStats {
  readonly loss: number;
  /** Per sequence, length T; 0 where the action mask is 0. */
  readonly trainingLogprobs: readonly (readonly number[])[];
  /** Mean over action tokens, nats. */
  readonly entropy: number;
  readonly actionTokens: number;
  readonly tokens: number;
  /** Of `tokens` those that were computed: a shared prefix is computed once. */
  readonly computedTokens: number;
  readonly paddingTokens: number;
  readonly packedRows: number;
}

/** What is scored of a sequence. */
export type ScoredSequence = Pick<TrainingSequence, 'tokenIds' | 'actionMask' | 'temperatures'>;

/** Calls must not overlap. Graphs are compiled at their first use and kept. */
export class Trainer {
  readonly #options: TrainerOptions;
  readonly #whole: WholeGraph;
  readonly #layered: Layered;
  #gradients: Map<string, Float32Array> | null = null;
  #optimizer: AdamWState;

  constructor(options: TrainerOptions) {
    this.#options = options;
    this.#optimizer = createAdamWState(options.trained);
    this.#whole = new WholeGraph(options);
    this.#layered = new Layered(options);
  }

  /** The weights being trained; owned by the trainer and changed in place by `update`. */
  get trained(): ModelParts['trained'] {
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
    checkLoss(loss, sequences);
    const units = planUnits(sequences, this.#planOptions());
    const trainingLogprobs = sequences.map((sequence) => new Array<number>(sequence.tokenIds.length).fill(0));
    const sums = { loss: 0, entropy: 0, actionTokens: 0 };
    const counts = { tokens: 0, computedTokens: 0, paddingTokens: 0, packedRows: 0 };
    if (!units.some((unit) => placesOf(unit).length > 0)) {
      throw new DataError('forwardBackward: at least one token must have actionMask 1, got none');
    }
    await this.#options.lanes?.setWeights(this.#options.trained);
    try {
      for await (const [unit, result] of this.#inOrder(units, (one) => this.#run(one, loss, scale))) {
        this.#accumulate(result.gradients);
        scatterLogprobs(placesOf(unit), result.logprobs, trainingLogprobs);
        sums.loss += result.loss;
        sums.entropy += result.entropy;
        sums.actionTokens += placesOf(unit).length;
        for (const [name, count] of Object.entries(countsOf(unit))) counts[name as keyof typeof counts] += count;
      }
    } catch (error) {
      this.#gradients = null; // A batch whose gradients are there in part must not be trained on.
      throw error;
    }
    return { ...sums, ...counts, entropy: sums.entropy / sums.actionTokens, trainingLogprobs };
  }

  /**
   * Logprobs of the action tokens of each sequence, length T, 0 elsewhere: under the weights being trained, or under `weights`, which hold a
   * tensor for every trained one. Leaves weights, gradients and optimizer as they are.
   */
  async score(sequences: readonly ScoredSequence[], weights?: TrainedWeights): Promise<number[][]> {
    const zeros = sequences.map(({ tokenIds }) => new Array<number>(tokenIds.length).fill(0));
    const data = sequences.map(
      (sequence, i): TrainingSequence => ({ ...sequence, samplingLogprobs: zeros[i]!, advantages: zeros[i]! }),
    );
    const units = planUnits(data, this.#planOptions()).filter((unit) => placesOf(unit).length > 0);
    const logprobs = zeros.map((values) => [...values]);
    await this.#options.lanes?.setWeights(weights ?? this.#options.trained);
    for await (const [unit, found] of this.#inOrder(units, (one) => this.#score(one, weights))) {
      scatterLogprobs(placesOf(unit), found, logprobs);
    }
    return logprobs;
  }

  /** Logprob of each token but the first (whose entry is 0) at one temperature, under the weights being trained. */
  async logprobs(tokenIds: readonly number[], temperature: number): Promise<number[]> {
    const actionMask = tokenIds.map((_, t) => (t === 0 ? 0 : 1));
    const [logprobs] = await this.score([{ tokenIds, actionMask, temperatures: tokenIds.map(() => temperature) }]);
    return logprobs!;
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

  #planOptions(): PlanOptions {
    const { config, microbatchTokens, activationRecomputation = 'auto', activationBytes } = this.#options;
    return {
      config,
      microbatchTokens,
      activationRecomputation,
      activationBytes: activationBytes ?? defaultActivationBytes,
    };
  }

  /** Results in the order of `units`, whichever is done first. Nothing runs any more when it throws. */
  async *#inOrder<T>(
    units: readonly Unit[],
    run: (unit: Unit) => Promise<T>,
  ): AsyncGenerator<readonly [Unit, T], void> {
    const running: Promise<T>[] = [];
    let next = 0;
    const start = (): void => {
      const unit = units[next++];
      if (unit) running.push(run(unit));
    };
    try {
      for (let lane = 0; lane < (this.#options.lanes?.count ?? 1); lane++) start();
      for (const unit of units) {
        const result = await running.shift()!;
        start();
        yield [unit, result];
      }
    } catch (error) {
      await Promise.allSettled(running);
      throw error;
    }
  }

  async #score(unit: Unit, weights: TrainedWeights | undefined): Promise<Float32Array> {
    const { lanes } = this.#options;
    if (lanes) return lanes.score(unit);
    return unit.kind === 'whole'
      ? this.#whole.score(unit.microbatch, weights)
      : this.#layered.score(unit.batch, weights);
  }

  async #run(unit: Unit, loss: LossSpec, scale: number): Promise<PassResult> {
    const { lanes } = this.#options;
    if (lanes) return lanes.run(unit, loss, scale);
    if (unit.kind === 'whole') return this.#whole.train(unit.microbatch, loss, scale);
    // Both ways together would take twice what activations may take.
    await this.#whole.release();
    return this.#layered.train(unit.batch, loss, scale, unit.isKeeping);
  }

  #accumulate(gradients: ReadonlyMap<string, Float32Array>): void {
    if (this.#gradients === null) {
      this.#gradients = new Map(gradients);
      return;
    }
    for (const [name, gradient] of gradients) {
      const sum = this.#gradients.get(name)!;
      for (let i = 0; i < sum.length; i++) sum[i]! += gradient[i]!;
    }
  }
}

/** `index` counts in the sequences that were planned. */
function placesOf(unit: Unit): readonly TokenPlace[] {
  if (unit.kind === 'whole') return unit.microbatch.places;
  return unit.batch.places.map(({ index, position }) => ({ index: unit.indices[index]!, position }));
}

function countsOf(
  unit: Unit,
): Pick<ForwardBackwardStats, 'tokens' | 'computedTokens' | 'paddingTokens' | 'packedRows'> {
  if (unit.kind === 'whole') {
    const { tokens, paddingTokens, rows } = unit.microbatch;
    return { tokens, computedTokens: tokens, paddingTokens, packedRows: rows };
  }
  const { sequences, layout } = unit.batch;
  const tokens = sequences.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0);
  return { tokens, computedTokens: layout.rows, paddingTokens: 0, packedRows: layout.runs.length };
}

function scatterLogprobs(places: readonly TokenPlace[], logprobs: ArrayLike<number>, into: readonly number[][]): void {
  for (const [i, { index, position }] of places.entries()) into[index]![position] = logprobs[i]!;
}
