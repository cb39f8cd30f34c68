/**
 * Proof that what is served is what was trained: sampler and trainer score the same probe text. Layer 5.
 * Reason: Python ART #661, where rollouts went on with the first adapter and nothing noticed.
 */
import { DataError, EngineError } from '../../core/errors.ts';
import type { Engine } from '../../engines/engine.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';

const probeText =
  'The quick brown fox jumps over the lazy dog. 3 + 4 = 7, and 12 times 12 is 144; is that so? {"answer": true, "of": [1, 2]} Yes.';
/**
 * Nats by which int8 rollouts may differ from the trainer on a token of the probe text. Loose on purpose: what a wrong adapter does to
 * single tokens is more, and what rounding does is in `loss/mismatch_kl`.
 */
export const int8ProbeTolerance = 3;
const minProbeIds = 8;
const maxProbeIds = 64;

/** Ids of the fixed probe text, at most 64 and at most the engine's context. Throws DataError if fewer than 8 are left. */
export function createProbeIds(tokenizer: Pick<Tokenizer, 'encode'>, maxPositions: number): number[] {
  const ids = [...tokenizer.encode(probeText)].slice(0, Math.min(maxProbeIds, maxPositions));
  if (ids.length < minProbeIds) {
    throw new DataError(`probe text: needs at least ${minProbeIds} token ids, got ${ids.length}`);
  }
  return ids;
}

/** Logprobs of the probe under a served policy step. */
async function scoreServed(
  engine: Pick<Engine, 'doLogprobs'>,
  probeIds: readonly number[],
  policyStep: number,
): Promise<readonly number[]> {
  return await engine.doLogprobs({ tokenIds: probeIds, temperature: 1, source: { kind: 'served', policyStep } });
}

/**
 * Logprobs of the probe under the served step, after checking that the trainer gives the same ones.
 * Throws EngineError if any differs by more than `tolerance` nats (0: bit for bit).
 */
export async function proveServed(
  engine: Pick<Engine, 'doLogprobs'>,
  probeIds: readonly number[],
  policyStep: number,
  tolerance: number,
): Promise<readonly number[]> {
  const trained = await engine.doLogprobs({ tokenIds: probeIds, temperature: 1, source: { kind: 'trainer' } });
  const served = await scoreServed(engine, probeIds, policyStep);
  const difference = largestDifference(trained, served);
  if (!(difference <= tolerance)) {
    throw new EngineError(
      `served policy: step ${policyStep} must score the probe text like the weights trained to step ${policyStep} ` +
        `(tolerance ${tolerance} nats), largest difference got ${difference}`,
      { details: { isRetryable: false, policyStep, largestDifference: difference } },
    );
  }
  return served;
}

/** Largest absolute difference; NaN if the lengths differ or any value is not finite. */
export function largestDifference(a: readonly number[], b: readonly number[]): number {
  if (a.length !== b.length) return Number.NaN;
  return a.reduce((largest, value, t) => {
    const difference = Math.abs(value - b[t]!);
    return Number.isNaN(largest) || Number.isNaN(difference) ? Number.NaN : Math.max(largest, difference);
  }, 0);
}
