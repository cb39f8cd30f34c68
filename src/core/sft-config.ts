/** Options of supervised fine-tuning on conversations, with their defaults. Layer 0. The wire schema in `wire/` refuses any other key. */
import type { DecayName } from './schedule.ts';
import type { AdamOptions } from './train-config.ts';

/** How one `sft` call turns conversations into optimizer updates. */
export interface SftConfig {
  /** Which turns of the assistant are learned: each of them, or the last of each conversation. */
  readonly trainOn: 'all' | 'last';
  readonly epochs: number;
  /** Conversations of one optimizer update. */
  readonly batchSize: number;
  /** The highest of the schedule. */
  readonly learningRate: number;
  readonly schedule: DecayName;
  /** Share of all updates in which the rate rises to its highest. */
  readonly warmupRatio: number;
  /** Where the call stands in a schedule that spans several calls; null: the schedule is the call's own. */
  readonly scheduleSpan: ScheduleSpan | null;
  /** Updates between two checkpoints, each of which is a policy step; null: one step at the end. */
  readonly checkpointEvery: number | null;
  /** 0 = no clipping. */
  readonly maxGradNorm: number;
  readonly adam: AdamOptions;
  /** Decides the order of the conversations. */
  readonly seed: number;
  /** Further variables of the chat template, e.g. `{ enable_thinking: false }`. */
  readonly templateVariables: Readonly<Record<string, unknown>>;
}

/** In updates. */
export interface ScheduleSpan {
  /** Of earlier calls. */
  readonly done: number;
  /** Of all calls. */
  readonly total: number;
}

export const defaultSftConfig: SftConfig = {
  trainOn: 'all',
  epochs: 1,
  batchSize: 8,
  learningRate: 1e-4,
  schedule: 'linear',
  warmupRatio: 0.1,
  scheduleSpan: null,
  checkpointEvery: null,
  maxGradNorm: 1,
  adam: { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0 },
  seed: 0,
  templateVariables: {},
};
