/**
 * From sampled turns to training sequences. Layer 5, pure. A turn extends the longest sequence of its trajectory that its prompt repeats from the
 * first id to the last; without one it starts a sequence. So turns of agents that take turns find their own again, a template that
 * rewrites history starts anew, and every sampled token stands in one place.
 */
import type { Datum } from '../../engines/engine.ts';
import type { CompletionRecord } from '../inference/served-model.ts';

/** A datum and the policy step that sampled each token; −1 where the action mask is 0. */
export interface TrainingSequence {
  readonly datum: Datum;
  readonly samplingSteps: readonly number[];
  readonly actionTokens: number;
}

export interface CreditedTurn {
  readonly record: CompletionRecord;
  readonly advantage: number;
  /** First turn of its history, repeats aside: that it starts a sequence is no surprise. */
  readonly isFirst: boolean;
}

/** The sequences of one trajectory; those without a sampled token are left out. `rerendered`: turns that had to start one anew. */
export function buildSequences(turns: readonly CreditedTurn[]): {
  readonly sequences: readonly TrainingSequence[];
  readonly rerendered: number;
} {
  const writers: SequenceWriter[] = [];
  let rerendered = 0;
  for (const { record, advantage, isFirst } of turns) {
    let writer = longestPrefix(writers, record.promptIds);
    if (writer === undefined) {
      if (!isFirst) rerendered += 1;
      writer = createSequenceWriter();
      writers.push(writer);
    }
    writer.append(record, advantage);
  }
  const sequences = writers.map((writer) => writer.finish()).filter((sequence) => sequence.actionTokens > 0);
  return { sequences, rerendered };
}

/** Of equally long ones, which hold the same ids, the newest. */
function longestPrefix(writers: readonly SequenceWriter[], promptIds: readonly number[]): SequenceWriter | undefined {
  let best: SequenceWriter | undefined;
  for (const writer of writers) {
    const isLonger = best === undefined || writer.tokenIds.length >= best.tokenIds.length;
    if (isLonger && isPrefix(writer.tokenIds, promptIds)) best = writer;
  }
  return best;
}

interface SequenceWriter {
  readonly tokenIds: readonly number[];
  readonly append: (turn: CompletionRecord, advantage: number) => void;
  readonly finish: () => TrainingSequence;
}

function createSequenceWriter(): SequenceWriter {
  const tokenIds: number[] = [];
  const actionMask: number[] = [];
  const samplingLogprobs: number[] = [];
  const advantages: number[] = [];
  const temperatures: number[] = [];
  const samplingSteps: number[] = [];
  return {
    tokenIds,
    append: (turn, advantage) => {
      for (let t = tokenIds.length; t < turn.promptIds.length; t++) {
        tokenIds.push(turn.promptIds[t]!);
        actionMask.push(0);
        samplingLogprobs.push(0);
        advantages.push(0);
        temperatures.push(1);
        samplingSteps.push(-1);
      }
      for (const [t, tokenId] of turn.tokenIds.entries()) {
        tokenIds.push(tokenId);
        actionMask.push(1);
        samplingLogprobs.push(turn.logprobs[t]!);
        advantages.push(advantage);
        // Greedy logprobs are reported at temperature 1.
        temperatures.push(turn.temperature === 0 ? 1 : turn.temperature);
        samplingSteps.push(turn.policyStep);
      }
    },
    finish: () => ({
      datum: { tokenIds, actionMask, samplingLogprobs, advantages, temperatures },
      samplingSteps,
      actionTokens: actionMask.reduce((sum, mask) => sum + mask, 0),
    }),
  };
}

function isPrefix(prefix: readonly number[], ids: readonly number[]): boolean {
  return prefix.length <= ids.length && prefix.every((id, t) => id === ids[t]);
}
