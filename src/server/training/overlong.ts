/**
 * What is done about trajectories that are too long. Layer 5, pure. Source: DAPO (arXiv 2503.14476) section 3.4, equation 13, and its
 * filtering of truncated samples. Length is what the policy sampled in a trajectory, all turns of all histories together.
 */
import type { OverlongOptions } from '../../core/train-config.ts';
import type { CompletionRecord } from '../inference/served-model.ts';

type Histories = readonly (readonly CompletionRecord[])[];

/** Added to a reward: 0 up to maxTokens − bufferTokens, from there linear to −1 at maxTokens, and −1 beyond. */
export function overlongPenalty(length: number, { bufferTokens }: OverlongOptions, maxTokens: number): number {
  if (bufferTokens === 0) return 0;
  const over = length - (maxTokens - bufferTokens);
  return over <= 0 ? 0 : -Math.min(1, over / bufferTokens);
}

/** Sampled tokens of a trajectory; a turn that stands in several of its histories counts once. */
export function sampledLength(histories: Histories): number {
  return [...new Set(histories.flat())].reduce((sum, record) => sum + record.tokenIds.length, 0);
}

/** Whether the trajectory ended because a turn met its token limit: the last turn of its main history, or of the first one that has turns. */
export function isCutShort(histories: Histories): boolean {
  return histories.find((records) => records.length > 0)?.at(-1)?.finishReason === 'length';
}
