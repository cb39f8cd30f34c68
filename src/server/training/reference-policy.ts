/**
 * Keeping a policy near a reference. Layer 5. Two forms: `loss` adds weight · k3 to the loss of every token (DeepSeekMath, arXiv 2402.03300,
 * eq. 4); `advantage` adds weight · (mean k1 − k1) to every token's advantage, k1 = ln π_old − ln π_ref, which sums to zero over the batch and
 * moves credit from tokens that left the reference to those that did not. The reference is scored before anything is trained.
 */
import { average } from '../../core/advantage.ts';
import { CheckpointError } from '../../core/errors.ts';
import type { KlPenalty, KlReference } from '../../core/train-config.ts';
import type { Datum, ScoreSource } from '../../engines/engine.ts';
import { type CheckpointStore, verifyCheckpoint } from '../store/checkpoints.ts';
import type { Scores } from './score-sequences.ts';
import type { Metrics } from './train-metrics.ts';
import type { TrainingSequence } from './training-batch.ts';

/** Where the reference's weights are, for a call that begins at `step`. Throws CheckpointError if they are not there, or damaged. */
export async function findReference(
  reference: KlReference,
  step: number,
  checkpoints: Pick<CheckpointStore, 'list'>,
): Promise<ScoreSource> {
  if (reference === 'base') return { kind: 'base' };
  const stored = checkpoints.list();
  const wanted = 'step' in reference ? reference.step : ancestor(stored, step, reference.stepsBack);
  const found = stored.find(({ manifest }) => manifest.step === wanted);
  if (found === undefined) {
    const steps = stored.map(({ manifest }) => manifest.step).join(', ');
    const asked = 'step' in reference ? '' : ` (${reference.stepsBack} back from step ${step})`;
    throw new CheckpointError(
      `train: klPenalty.reference must be a checkpoint that is kept, got step ${wanted}${asked}; kept are ${steps || 'none'}. ` +
        'Keep more checkpoints, or take another reference',
    );
  }
  await verifyCheckpoint(found);
  return { kind: 'checkpoint', directory: found.directory };
}

/** So many policy steps before `step` in the run's own line, which leaves out what was rolled back; at most back to its first. */
function ancestor(stored: ReturnType<CheckpointStore['list']>, step: number, stepsBack: number): number {
  let at = step;
  for (let i = 0; i < stepsBack && at > 0; i++) {
    const found = stored.find(({ manifest }) => manifest.step === at);
    const parent = found === undefined ? at - 1 : found.manifest.parentStep;
    if (parent === null) break;
    at = parent;
  }
  return at;
}

/** The data with what the penalty's form needs of the reference; `data` are theirs so far. */
export function holdToReference(
  data: ReadonlyMap<TrainingSequence, Datum>,
  referenceLogprobs: Scores,
  oldLogprobs: Scores | null,
  { form, weight }: KlPenalty,
): ReadonlyMap<TrainingSequence, Datum> {
  if (form === 'loss' || oldLogprobs === null) {
    return mapData(data, (datum, sequence) => ({ ...datum, referenceLogprobs: referenceLogprobs.get(sequence)! }));
  }
  const k1 = (sequence: TrainingSequence, t: number): number =>
    oldLogprobs.get(sequence)![t]! - referenceLogprobs.get(sequence)![t]!;
  const actions = [...data].flatMap(([sequence, { actionMask }]) =>
    actionMask.flatMap((isAction, t) => (isAction === 1 ? [k1(sequence, t)] : [])),
  );
  const mean = average(actions);
  return mapData(data, (datum, sequence) => ({
    ...datum,
    advantages: datum.advantages.map((advantage, t) =>
      datum.actionMask[t] === 1 ? advantage + weight * (mean - k1(sequence, t)) : advantage,
    ),
  }));
}

function mapData(
  data: ReadonlyMap<TrainingSequence, Datum>,
  change: (datum: Datum, sequence: TrainingSequence) => Datum,
): ReadonlyMap<TrainingSequence, Datum> {
  return new Map([...data].map(([sequence, datum]) => [sequence, change(datum, sequence)]));
}

/** Collects how far the policy in training is from the reference, over all forward passes of a step. */
export interface ReferenceMeter {
  readonly add: (sequence: TrainingSequence, trainingLogprobs: readonly number[]) => void;
  /** `loss/kl_policy_ref`: mean k3 over action tokens, whatever the form; `loss/kl_penalty`: times the weight. Empty without tokens. */
  readonly metrics: () => Metrics;
}

export function createReferenceMeter(referenceLogprobs: Scores, weight: number): ReferenceMeter {
  let sum = 0;
  let tokens = 0;
  return {
    add: (sequence, trainingLogprobs) => {
      const reference = referenceLogprobs.get(sequence)!;
      for (const [t, isAction] of sequence.datum.actionMask.entries()) {
        if (isAction === 0) continue;
        const x = reference[t]! - trainingLogprobs[t]!;
        sum += Math.expm1(x) - x;
        tokens += 1;
      }
    },
    metrics: () =>
      tokens === 0 ? {} : { 'loss/kl_policy_ref': sum / tokens, 'loss/kl_penalty': (weight * sum) / tokens },
  };
}
