/**
 * What the loss of a `train` call reads beside what was sampled: logprobs of the trainer and of a reference, weights of samplers that differ,
 * ratios of whole trajectories. Layer 5. Scoring costs a forward pass, so only what is read is scored: with an exact sampler, fresh
 * tokens and the options that a call has by default that is nothing.
 */
import type { TrainConfig } from '../../core/train-config.ts';
import { type Datum, isPolicyLoss, type LossConfig } from '../../engines/engine.ts';
import type { CheckpointStore } from '../store/checkpoints.ts';
import { capLoss, correctImportance, meanLogRatio, needsCorrection } from './importance-weights.ts';
import { createReferenceMeter, findReference, holdToReference, type ReferenceMeter } from './reference-policy.ts';
import { type OldPolicy, type Scores, scoreOldPolicy, scoreSequences } from './score-sequences.ts';
import type { Metrics } from './train-metrics.ts';
import type { TrainingBatch, TrainingSequence } from './training-batch.ts';

export type LossDatums = ReadonlyMap<TrainingSequence, Datum>;

export interface LossData {
  readonly loss: LossConfig;
  /** Without the ratios of trajectories, which change with the weights: `addSequenceRatios`. */
  readonly data: LossDatums;
  /** Under the trainer as the call begins, where something reads them. */
  readonly oldLogprobs: Scores | null;
  /** Null without a KL penalty. */
  readonly meter: ReferenceMeter | null;
  readonly metrics: Metrics;
}

/** Throws CheckpointError if the reference is not there, before anything is scored. */
export async function prepareLossData(
  policy: OldPolicy,
  batch: TrainingBatch,
  config: TrainConfig,
  uncapped: LossConfig,
  checkpoints: Pick<CheckpointStore, 'list'>,
): Promise<LossData> {
  const { klPenalty } = config;
  const sequences = batch.trajectories.flat();
  const source = klPenalty && (await findReference(klPenalty.reference, policy.step, checkpoints));
  const isCorrected = needsCorrection(uncapped, config);
  const oldLogprobs = isCorrected || klPenalty?.form === 'advantage' ? await scoreOldPolicy(policy, sequences) : null;
  let loss = capLoss(uncapped, config);
  let data: LossDatums = new Map(sequences.map((sequence) => [sequence, sequence.datum]));
  let meter: ReferenceMeter | null = null;
  if (klPenalty && source) {
    const reference = await scoreSequences(policy, sequences, source);
    data = holdToReference(data, reference, oldLogprobs, klPenalty);
    meter = createReferenceMeter(reference, klPenalty.weight);
    if (klPenalty.form === 'loss' && isPolicyLoss(loss)) loss = { ...loss, klWeight: klPenalty.weight };
  }
  if (!isCorrected || oldLogprobs === null) return { loss, data, oldLogprobs, meter, metrics: {} };
  const corrected = correctImportance(batch.trajectories, data, oldLogprobs, loss, config);
  return { loss, data: corrected.data, oldLogprobs, meter, metrics: corrected.metrics };
}

/**
 * The data of the trajectories of one update with `sequenceLogRatio`: mean of training − sampling over the action tokens of the whole
 * trajectory, at the weights that the engine holds. `oldLogprobs`: those of the trainer if it still has the weights that it began with.
 */
export async function addSequenceRatios(
  policy: OldPolicy,
  trajectories: readonly (readonly TrainingSequence[])[],
  data: LossDatums,
  weights: { readonly isFirstUpdate: boolean; readonly oldLogprobs: Scores | null },
): Promise<LossDatums> {
  const sequences = trajectories.flat();
  const scores = weights.isFirstUpdate
    ? (weights.oldLogprobs ?? (await scoreOldPolicy(policy, sequences)))
    : await scoreSequences(policy, sequences, { kind: 'trainer' });
  const found = new Map<TrainingSequence, Datum>();
  for (const trajectory of trajectories) {
    const sequenceLogRatio = meanLogRatio(trajectory, scores, (sequence) => data.get(sequence)!.samplingLogprobs);
    for (const sequence of trajectory) found.set(sequence, { ...data.get(sequence)!, sequenceLogRatio });
  }
  return found;
}
