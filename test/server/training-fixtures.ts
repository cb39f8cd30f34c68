/** Short forms of what training requests are made of. */
import type { CompletionRecord } from '../../src/server/inference/served-model.ts';
import type { TrainRequest, WireGroup, WireTrajectory } from '../../src/wire/training.ts';

export function completion(completionId: string, init: Partial<CompletionRecord> = {}): CompletionRecord {
  const tokenIds = init.tokenIds ?? [7, 8];
  return {
    completionId,
    choiceIndex: 0,
    policyStep: 0,
    promptIds: [1, 2],
    tokenIds,
    logprobs: tokenIds.map(() => -1),
    temperature: 1,
    finishReason: 'stop',
    ...init,
  };
}

export function lookup(...records: readonly CompletionRecord[]): {
  get: (id: string, index: number) => CompletionRecord | undefined;
} {
  return {
    get: (id, index) => records.find((record) => record.completionId === id && record.choiceIndex === index),
  };
}

/** A trajectory of one user message and the named completions. */
export function trajectory(reward: number, completionIds: readonly string[]): WireTrajectory {
  return {
    entries: [
      { message: { role: 'user', content: 'go' } },
      ...completionIds.map((id) => ({
        message: { role: 'assistant', content: id },
        choice: { completion_id: id, choice_index: 0 },
      })),
    ],
    reward,
    metrics: {},
    metadata: {},
    logs: [],
  };
}

export function group(...trajectories: readonly WireTrajectory[]): WireGroup {
  return { trajectories: [...trajectories], exceptions: [], metrics: {}, metadata: {}, logs: [] };
}

export function trainRequest(
  idempotencyKey: string,
  ...groups: readonly WireGroup[]
): TrainRequest & { groups: WireGroup[] } {
  return { idempotency_key: idempotencyKey, groups: [...groups], options: { learning_rate: 0.25 } };
}
