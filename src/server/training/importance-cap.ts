/**
 * Truncated importance sampling, for samplers that do not have the trainer's exact probabilities. Layer 5.
 * Each token's loss weighs min(π_old / μ, cap): μ sampled it, π_old is the trainer when the call begins. CISPO's weight has that form
 * already, so the cap bounds it. PPO's ratio is then π / π_old. Source: Yao et al. 2025, "Your efficient RL framework secretly brings you
 * off-policy RL training".
 */
import { DataError } from '../../core/errors.ts';
import type { Datum, Engine, LossConfig } from '../../engines/engine.ts';
import type { TrainingSequence } from './training-batch.ts';

/** The loss under a cap. Its ratio in data is that of `anchorToTrainer` where `needsAnchor`. */
export function capLoss(loss: LossConfig, cap: number | null): LossConfig {
  return loss.name === 'cispo' && cap !== null ? { ...loss, clipHigh: Math.min(loss.clipHigh, cap) } : loss;
}

/** Whether the weight must stand beside the loss because its own clip does not bound it. */
export function needsAnchor(loss: LossConfig, cap: number | null): boolean {
  return cap !== null && (loss.name === 'ppo' || loss.name === 'importanceSampling');
}

/**
 * Data whose ratios are to the trainer's probabilities at the moment, and whose weights hold what that leaves out, up to `cap`. Throws
 * DataError if the trainer gives a logprob that is not finite.
 */
export async function anchorToTrainer(
  engine: Pick<Engine, 'doLogprobs'>,
  sequences: Iterable<TrainingSequence>,
  cap: number,
): Promise<ReadonlyMap<TrainingSequence, Datum>> {
  const anchored = new Map<TrainingSequence, Datum>();
  for (const sequence of sequences) {
    const { datum } = sequence;
    const { tokenIds, actionMask, temperatures, samplingLogprobs, tokenWeights } = datum;
    const trainerLogprobs = new Array<number>(tokenIds.length).fill(0);
    for (const temperature of new Set(temperatures.filter((_, t) => actionMask[t] === 1))) {
      const logprobs = await engine.doLogprobs({ tokenIds, temperature, source: { kind: 'trainer' } });
      for (const [t, logprob] of logprobs.entries()) {
        if (actionMask[t] === 1 && temperatures[t] === temperature) trainerLogprobs[t] = logprob;
      }
    }
    const wrong = trainerLogprobs.findIndex((logprob) => !Number.isFinite(logprob));
    if (wrong >= 0) {
      throw new DataError(
        `train: logprobs of the trainer must be finite, got ${trainerLogprobs[wrong]} at token ${wrong}`,
      );
    }
    const weights = trainerLogprobs.map(
      (logprob, t) => (tokenWeights?.[t] ?? 1) * Math.min(Math.exp(logprob - samplingLogprobs[t]!), cap),
    );
    anchored.set(sequence, { ...datum, samplingLogprobs: trainerLogprobs, tokenWeights: weights });
  }
  return anchored;
}
