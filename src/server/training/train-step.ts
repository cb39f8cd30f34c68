/**
 * The optimizer updates of one `train` call. Layer 5.
 * Loss: weighted sum over the action tokens of an update times its scale; what both are is length-normalization.ts's.
 * Left out: refilling of skipped groups.
 */
import { average } from '../../core/advantage.ts';
import { AbortedError, DataError } from '../../core/errors.ts';
import { createRng, shuffle } from '../../core/rng.ts';
import { resolveLoss, type TrainConfig } from '../../core/train-config.ts';
import { learningRateAt } from '../../core/train-config-rules.ts';
import type { Engine, ForwardBackwardResult, LossConfig } from '../../engines/engine.ts';
import type { TrainProgress } from '../../wire/training.ts';
import type { CheckpointStore } from '../store/checkpoints.ts';
import { updateScale } from './length-normalization.ts';
import { addSequenceRatios, type LossData, type LossDatums, prepareLossData } from './loss-data.ts';
import { maxDataPerCall } from './score-sequences.ts';
import { createRatioCollector, type Metrics } from './train-metrics.ts';
import type { TrainingBatch, TrainingSequence } from './training-batch.ts';

export interface UpdateRequest {
  readonly engine: Pick<Engine, 'doForwardBackward' | 'doOptimStep' | 'doScore'>;
  readonly batch: TrainingBatch;
  readonly config: TrainConfig;
  /** Policy step whose weights the engine holds when the call begins. */
  readonly step: number;
  /** Whether sampler and trainer give the same logprobs at the same weights. */
  readonly isExact: boolean;
  /** Where the reference of a KL penalty is looked for. */
  readonly checkpoints: Pick<CheckpointStore, 'list'>;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: TrainProgress) => void;
}

export interface UpdateResult {
  /** Deterministic metrics: `loss/…` and `data/…`. */
  readonly metrics: Metrics;
  readonly trainedTokens: number;
  readonly seconds: number;
}

/**
 * Trains on the batch: per epoch, one AdamW update for each of `gradientSteps` parts. A batch without sequences changes nothing.
 * If it rejects, the engine may hold changed weights and gradients: load a checkpoint before going on.
 * Throws DataError for tokens of a policy step that does not exist yet, CheckpointError for a reference that is not there, both before
 * anything is trained; AbortedError when the signal fires, between two engine calls.
 */
export async function runUpdates(request: UpdateRequest): Promise<UpdateResult> {
  const { engine, batch, config, step, signal, onProgress } = request;
  checkSamplingSteps(batch, step);
  const startedAt = performance.now();
  const learningRate = learningRateAt(config, step);
  const lossData = await prepareLossData(request, batch, config, lossConfigOf(config), request.checkpoints);
  const { loss, meter } = lossData;
  const parts = planUpdates(batch, config, step);
  const total = parts.reduce((calls, part) => calls + part.length, 0);
  const ratios = createRatioCollector();
  const results: ForwardBackwardResult[] = [];
  const losses: number[] = [];
  const gradNorms: number[] = [];
  let gradientSteps: number | undefined;
  for (const [partIndex, calls] of parts.entries()) {
    const scale = updateScale(resolveLoss(config).lengthNormalization, {
      partTokens: countActionTokens(calls.flat()),
      batchTokens: batch.actionTokens,
      parts: parts.length / config.epochs,
    });
    const data = await dataOfUpdate(request, lossData, calls.flat(), partIndex === 0);
    let partLoss = 0;
    for (const sequences of calls) {
      throwIfAborted(signal, results.length, total);
      const datums = sequences.map((sequence) => data.get(sequence)!);
      const result = await engine.doForwardBackward({ data: datums, loss, scale });
      for (const [index, sequence] of sequences.entries()) {
        const trainingLogprobs = result.trainingLogprobs[index]!;
        ratios.add(sequence, datums[index]!, trainingLogprobs, loss, partIndex === 0 ? step : null);
        meter?.add(sequence, trainingLogprobs);
      }
      partLoss += result.loss;
      results.push(result);
      onProgress({ stage: 'train', done: results.length, total });
    }
    throwIfAborted(signal, results.length, total);
    const update = await engine.doOptimStep({
      learningRate,
      ...config.adam,
      maxGradNorm: config.maxGradNorm,
    });
    losses.push(partLoss);
    gradNorms.push(update.gradNorm);
    gradientSteps = update.gradientSteps;
  }
  return {
    metrics: {
      ...computeMetrics(results),
      ...(losses.length > 0 && {
        'loss/train': average(losses),
        'loss/grad_norm': average(gradNorms),
        'loss/learning_rate': learningRate,
        ...(config.importanceCap !== null && { 'loss/importance_cap': config.importanceCap }),
      }),
      ...ratios.metrics(),
      ...lossData.metrics,
      ...meter?.metrics(),
      ...(gradientSteps !== undefined && { 'data/cum/num_gradient_steps': gradientSteps }),
    },
    trainedTokens: results.reduce((tokens, result) => tokens + result.tokens, 0),
    seconds: (performance.now() - startedAt) / 1000,
  };
}

/** Only GSPO's data change with the weights. A trajectory is in one update, but may be in several calls. */
async function dataOfUpdate(
  request: UpdateRequest,
  { loss, data, oldLogprobs }: LossData,
  sequences: readonly TrainingSequence[],
  isFirstUpdate: boolean,
): Promise<LossDatums> {
  if (loss.name !== 'gspo') return data;
  const own = new Set(sequences);
  const trajectories = request.batch.trajectories.filter(([first]) => own.has(first!));
  return await addSequenceRatios(request, trajectories, data, { isFirstUpdate, oldLogprobs });
}

/** The engine calls of every update, [update][call][sequence]. Whole trajectories are dealt out in an order that the seed and the step decide. */
export function planUpdates(batch: TrainingBatch, config: TrainConfig, step: number): TrainingSequence[][][] {
  const updates: TrainingSequence[][][] = [];
  const count = batch.trajectories.length;
  const parts = Math.min(config.gradientSteps, count);
  for (let epoch = 0; epoch < config.epochs; epoch++) {
    const order = shuffle(batch.trajectories, createRng(config.seed, 'train-order', step, epoch));
    for (let part = 0; part < parts; part++) {
      const from = Math.floor((part * count) / parts);
      const to = Math.floor(((part + 1) * count) / parts);
      updates.push(chunk(order.slice(from, to).flat(), maxDataPerCall));
    }
  }
  return updates;
}

/** The loss as the engine has it, with what the configuration leaves open filled in. */
export function lossConfigOf(config: TrainConfig): LossConfig {
  const { surrogate, clip } = resolveLoss(config);
  const { entropyBonus } = config;
  if (surrogate === 'importanceSampling' || clip === null) return { name: 'importanceSampling', entropyBonus };
  return { name: surrogate, clipLow: clip.low, clipHigh: clip.high, entropyBonus };
}

function computeMetrics(results: readonly ForwardBackwardResult[]): Metrics {
  const total = (count: (result: ForwardBackwardResult) => number): number =>
    results.reduce((sum, result) => sum + count(result), 0);
  const tokens = total((result) => result.tokens);
  const padding = total((result) => result.paddingTokens);
  const actionTokens = total((result) => result.actionTokens);
  return {
    'data/step_trainer_tokens': tokens,
    'data/step_packed_sequences': total((result) => result.packedRows),
    'data/step_padding_ratio': tokens + padding === 0 ? 0 : padding / (tokens + padding),
    ...(actionTokens > 0 && {
      'loss/entropy': total((result) => result.entropy * result.actionTokens) / actionTokens,
    }),
  };
}

/** Turns of a step that was rolled back would be taken for fresh ones once that step number is used again. */
function checkSamplingSteps(batch: TrainingBatch, step: number): void {
  for (const sequence of batch.trajectories.flat()) {
    const future = sequence.samplingSteps.find((samplingStep) => samplingStep > step);
    if (future !== undefined) {
      throw new DataError(
        `train: turns must come from policy steps up to ${step}, got one of step ${future}, whose training was undone; roll out again`,
      );
    }
  }
}

function throwIfAborted(signal: AbortSignal, done: number, total: number): void {
  if (signal.aborted) {
    throw new AbortedError(`train: stopped after ${done} of ${total} engine calls`, { cause: signal.reason });
  }
}

function countActionTokens(sequences: readonly TrainingSequence[]): number {
  return sequences.reduce((tokens, sequence) => tokens + sequence.actionTokens, 0);
}

function chunk<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, index) =>
    items.slice(index * size, (index + 1) * size),
  );
}
