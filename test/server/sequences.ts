/** Training sequences with numbers chosen by hand. */
import type { TrainingSequence } from '../../src/server/training/training-batch.ts';

export interface SequenceInit {
  readonly sampling: readonly number[];
  readonly advantages?: readonly number[];
  readonly step?: number;
}

/** One prompt token and an action for each entry of `sampling`, its logprob. Ids differ from sequence to sequence. */
export function trainingSequence({ sampling, advantages, step = 0 }: SequenceInit, id = 1): TrainingSequence {
  const values = (of: readonly number[], first: number): number[] => [first, ...of];
  return {
    datum: {
      tokenIds: values(
        sampling.map((_, t) => 10 * id + t),
        id,
      ),
      actionMask: values(
        sampling.map(() => 1),
        0,
      ),
      samplingLogprobs: values(sampling, 0),
      advantages: values(advantages ?? sampling.map(() => 1), 0),
      temperatures: values(
        sampling.map(() => 1),
        1,
      ),
    },
    samplingSteps: values(
      sampling.map(() => step),
      -1,
    ),
    actionTokens: sampling.length,
  };
}
