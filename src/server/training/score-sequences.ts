/** Logprobs of training sequences under weights of choice, in calls of bounded size. Layer 5. */
import { AbortedError, DataError } from '../../core/errors.ts';
import type { Engine, ScoreSource } from '../../engines/engine.ts';
import type { TrainingSequence } from './training-batch.ts';

/** Data of one engine call: bounds messages between processes, and the time until a signal is looked at or progress is told. */
export const maxDataPerCall = 64;

/** Per sequence, length T; 0 where the action mask is 0. */
export type Scores = ReadonlyMap<TrainingSequence, readonly number[]>;

export interface Scorer {
  readonly engine: Pick<Engine, 'doScore'>;
  readonly signal: AbortSignal;
}

/** Throws DataError if a logprob is not finite; AbortedError when the signal fires, between two engine calls. */
export async function scoreSequences(
  { engine, signal }: Scorer,
  sequences: readonly TrainingSequence[],
  source: ScoreSource,
): Promise<Scores> {
  const scores = new Map<TrainingSequence, readonly number[]>();
  for (let from = 0; from < sequences.length; from += maxDataPerCall) {
    if (signal.aborted) throw new AbortedError('train: stopped while its data were scored', { cause: signal.reason });
    const some = sequences.slice(from, from + maxDataPerCall);
    const data = some.map(({ datum: { tokenIds, actionMask, temperatures } }) => ({
      tokenIds,
      actionMask,
      temperatures,
    }));
    const found = await engine.doScore({ data, source });
    for (const [i, sequence] of some.entries()) {
      const logprobs = found[i]!;
      const wrong = logprobs.findIndex((logprob) => !Number.isFinite(logprob));
      if (wrong >= 0) {
        throw new DataError(
          `train: logprobs of the ${source.kind} must be finite, got ${logprobs[wrong]} at token ${wrong}`,
        );
      }
      scores.set(sequence, logprobs);
    }
  }
  return scores;
}

export interface OldPolicy extends Scorer {
  /** Policy step whose weights the engine holds. */
  readonly step: number;
  /** Whether sampler and trainer give the same logprobs at the same weights. */
  readonly isExact: boolean;
}

/** Logprobs under π_old, the trainer as the call begins. Where an exact sampler had these very weights they are what it recorded. */
export async function scoreOldPolicy(policy: OldPolicy, sequences: readonly TrainingSequence[]): Promise<Scores> {
  const isFresh = (sequence: TrainingSequence): boolean => policy.isExact && isOfStep(sequence, policy.step);
  const stale = sequences.filter((sequence) => !isFresh(sequence));
  const scored = await scoreSequences(policy, stale, { kind: 'trainer' });
  return new Map(sequences.map((sequence) => [sequence, scored.get(sequence) ?? sequence.datum.samplingLogprobs]));
}

/** Whether every action token was sampled at this step. */
export function isOfStep({ samplingSteps }: TrainingSequence, step: number): boolean {
  return samplingSteps.every((samplingStep) => samplingStep === -1 || samplingStep === step);
}
