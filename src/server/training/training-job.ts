/** What training by reward and by example have in common, and the former as a `PreparedJob`. Layer 5. */
import { defaultTrainConfig, inexactImportanceCap, resolveLoss } from '../../core/train-config.ts';
import { checkTrainConfig } from '../../core/train-config-rules.ts';
import type { Engine } from '../../engines/engine.ts';
import type { JobKind } from '../../wire/jobs.ts';
import type { TrainProgress, TrainRequest } from '../../wire/training.ts';
import { toTrainConfig } from '../../wire/training-names.ts';
import type { ServedModel } from '../inference/served-model.ts';
import { resolveGroups } from '../rollouts/rollout-histories.ts';
import type { StoragePolicy } from '../security/storage-policy.ts';
import type { CheckpointStore } from '../store/checkpoints.ts';
import { formatTrajectories } from '../store/trajectory-files.ts';
import { addMetrics, batchMetrics, type Metrics, stalenessMetrics, trajectoryMetrics } from './train-metrics.ts';
import { runUpdates } from './train-step.ts';
import { buildTrainingBatch, type TrainingBatch } from './training-batch.ts';

export interface UpdateContext {
  readonly engine: Pick<Engine, 'doForwardBackward' | 'doOptimStep' | 'doScore'>;
  /** Policy step whose weights the engine holds. */
  readonly step: number;
  /** The step to be made of them. */
  readonly nextStep: number;
  /** From 0 to `parts` − 1. */
  readonly part: number;
  /** Fires between two engine calls; then the work ends with AbortedError. */
  readonly signal: AbortSignal;
  readonly onProgress: (progress: TrainProgress) => void;
}

export interface PartUpdates {
  readonly metrics: Metrics;
  readonly trainedTokens: number;
  /** Of the trainer. */
  readonly seconds: number;
}

/** A call that was checked and waits for its turn; the sampled turns are looked up before, so none can be dropped later. */
export interface PreparedJob {
  readonly kind: JobKind;
  readonly idempotencyKey: string;
  readonly requestSha256: string;
  /** As checkpoints record it. */
  readonly config: Readonly<Record<string, unknown>>;
  /** Policy steps that the job makes, one after another. */
  readonly parts: number;
  /** Whether the weights are to change. */
  readonly hasData: boolean;
  /** Lines for `trajectories/train/<step>.jsonl`; null = no such file. */
  readonly trajectories: string | null;
  /** Collected rollouts that it trains; they are held for it until it has ended. */
  readonly rolloutIds?: readonly string[];
  /** The optimizer updates of one part. If it rejects, the engine may hold changed weights. */
  readonly update: (context: UpdateContext) => Promise<PartUpdates>;
}

export interface JobEnvironment {
  readonly model: Pick<ServedModel, 'completions' | 'tokenizer' | 'template'>;
  readonly maxPositions: number;
  readonly probeTolerance: number;
  readonly storage: StoragePolicy;
  readonly onWarning: (message: string) => void;
}

/** Below the job's kind: whether the served policy scores the probe text otherwise than before. The step fills it in. */
export const changedMetric = 'served_policy_changed';

/** Checks a `train` call. Throws DataError that names the group, before anything runs. */
export function prepareTraining(
  request: TrainRequest,
  requestSha256: string,
  environment: JobEnvironment & { readonly checkpoints: Pick<CheckpointStore, 'list'> },
): PreparedJob {
  const { checkpoints, model, maxPositions, probeTolerance, storage, onWarning } = environment;
  const importanceCap = probeTolerance > 0 ? inexactImportanceCap : defaultTrainConfig.importanceCap;
  const config = toTrainConfig(request.options, { ...defaultTrainConfig, importanceCap });
  checkTrainConfig(config);
  const { rollouts } = model.completions;
  const { groups, rolloutIds, skipped } = resolveGroups(request, rollouts);
  const batch = buildTrainingBatch(groups, model.completions, {
    ...config,
    ...resolveLoss(config),
    maxTokens: maxPositions,
  });
  // The placeholder keeps users' metrics off the name; the step replaces it.
  const metrics: Metrics = { [`train/${changedMetric}`]: 0, ...batchMetrics(batch) };
  if (skipped > 0) metrics['discarded/step/trained_rollouts'] = skipped;
  addMetrics(metrics, trajectoryMetrics('train', groups));
  const hasData = batch.trajectories.length > 0;
  return {
    kind: 'train',
    idempotencyKey: request.idempotency_key,
    requestSha256,
    config: { ...config },
    parts: 1,
    hasData,
    trajectories: formatTrajectories(groups, model, storage),
    rolloutIds,
    update: async ({ engine, step, nextStep, signal, onProgress }) => {
      if (!hasData) onWarning(nothingTrainable(nextStep, batch, maxPositions));
      const isExact = probeTolerance === 0;
      const updates = await runUpdates({ engine, batch, config, step, isExact, checkpoints, signal, onProgress });
      return { ...updates, metrics: { ...metrics, ...stalenessMetrics(batch, step), ...updates.metrics } };
    },
  };
}

function nothingTrainable(step: number, { counts }: TrainingBatch, maxPositions: number): string {
  return (
    `step ${step}: nothing to train on, so the weights stay as they are: of ${counts.groups} groups, ` +
    `${counts.zeroVarianceGroups} have equal rewards throughout or fewer than two trajectories; ` +
    `${counts.droppedTrajectories} trajectories exceed the context of ${maxPositions} tokens, ${counts.maskedTrajectories} were cut short`
  );
}
