/** What is told about each generation as it goes: to metrics, to traces. Layer 5. It never sees texts. */
import type { GenerationRequest, GenerationUsage } from '../../core/generation.ts';
import type { FinishedChoice } from '../inference/generation-choice.ts';

export interface GenerationWatch {
  /** The first token is there; called once. */
  readonly started: () => void;
  readonly ended: (usage: GenerationUsage, choices: readonly FinishedChoice[]) => void;
  /** It was refused, failed or was given up. */
  readonly failed: (error: unknown) => void;
}

export type WatchGeneration = (request: GenerationRequest) => GenerationWatch;

/** One that tells all of them. */
export function joinWatches(all: readonly WatchGeneration[]): WatchGeneration {
  return (request) => {
    const watches = all.map((watch) => watch(request));
    return {
      started: () => {
        for (const watch of watches) watch.started();
      },
      ended: (usage, choices) => {
        for (const watch of watches) watch.ended(usage, choices);
      },
      failed: (error) => {
        for (const watch of watches) watch.failed(error);
      },
    };
  };
}
