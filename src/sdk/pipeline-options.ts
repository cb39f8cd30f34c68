/** Options of `PipelineTrainer`, with their defaults and rules. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import type { Loggable } from './encode.ts';
import type { GroupRollout } from './group-rollout.ts';
import type { TrainableModel } from './model.ts';
import { encodeTrainOptions, type TrainOptions } from './options.ts';
import type { PipelineStep } from './pipeline-meter.ts';

export interface EvaluationContext {
  /** The policy step that is evaluated. */
  readonly step: number;
  /** The `model` field of its requests: that step, whatever is trained meanwhile. */
  readonly modelName: string;
  /** Fires when the run ends or the evaluation's time is up. */
  readonly signal: AbortSignal;
}

/** What an evaluation may give: what is logged under `val`, or under several splits, or nothing where it logs by itself. */
export type EvaluationResult = Loggable | Readonly<Record<string, Loggable>> | undefined;

export interface PipelineOptions<S> {
  /** Registered. */
  readonly model: TrainableModel;
  readonly scenarios: readonly S[];
  /** Rolls out one scenario to a group: see `createGroupRollout`. It samples from the newest policy. */
  readonly rollout: GroupRollout<S>;
  /** The run ends when the model has this policy step. */
  readonly untilStep: number;
  /** Passes over the scenarios, each in an order of its own; default Infinity. */
  readonly epochs?: number;
  /** Of the order of scenarios and of what rollouts draw; default 0. */
  readonly seed?: number;
  /** Scenarios that are rolled out at once; default 16. */
  readonly workers?: number;
  /** A step waits for so many groups; default 4. */
  readonly minBatchSize?: number;
  /** And takes at most so many of those that are there; default twice `minBatchSize`. */
  readonly maxBatchSize?: number;
  /**
   * Steps between the policy that began a group and the one that is trained with it; older groups are dropped,
   * and rolled out again once. 0 alternates. Default 2.
   */
  readonly maxStaleness?: number;
  /** Groups that may lie ready; workers wait beyond. Default: as many as `maxStaleness` allows. */
  readonly maxQueuedGroups?: number;
  /** Of every `train` call, or by the step that is trained from, as a schedule is. */
  readonly trainOptions?: TrainOptions | ((step: number) => TrainOptions);
  /** Limit of the rollout of one group; default 1,200,000. */
  readonly rolloutTimeoutMs?: number;
  /**
   * Rollouts that may fail: a count over the run, or below 1 a share of the latest 64. One more ends the run. A group whose rollouts all
   * fail is dropped. Default 0.5.
   */
  readonly maxExceptions?: number;
  /** Groups in a row without difference in rewards that end the run with CollapseError; default 100 times `minBatchSize`. */
  readonly collapseAfter?: number;
  /** Runs beside training, on a pinned step; one at a time. Its failure is a warning. */
  readonly evaluate?: (context: EvaluationContext) => Promise<EvaluationResult>;
  /** In steps; default 20. The last step is evaluated too. */
  readonly evaluateEvery?: number;
  /** Whether a run evaluates the step that it begins with; default true. */
  readonly evaluateAtStart?: boolean;
  /** Default 3,600,000. */
  readonly evaluationTimeoutMs?: number;
  /**
   * Policies that the engine keeps servable (`servedPolicies` of its options): training goes at most so many steps, less one, ahead of an
   * evaluation, which would lose its policy. Default 2.
   */
  readonly servedPolicies?: number;
  /** The run ends with StallError when nothing has moved for so long; default 1,800,000. */
  readonly stallTimeoutMs?: number;
  /** Where the state lies in `model.readState()`; null: it is neither read nor written. Default `pipeline`. */
  readonly stateKey?: string | null;
  /** After every step. */
  readonly onStep?: (step: PipelineStep) => void;
  /** Default console.warn. */
  readonly onWarning?: (message: string) => void;
  /** Whether Ctrl-C means `requestStop()`; default false. */
  readonly stopOnSigint?: boolean;
}

/** Options with every default filled in. */
export type PipelineConfig<S> = Required<Omit<PipelineOptions<S>, 'evaluate' | 'onStep' | 'trainOptions'>> &
  Pick<PipelineOptions<S>, 'evaluate' | 'onStep'> & { readonly trainOptionsOf: (step: number) => TrainOptions };

const optionNames: { readonly [K in keyof Required<PipelineOptions<unknown>>]: true } = {
  model: true,
  scenarios: true,
  rollout: true,
  untilStep: true,
  epochs: true,
  seed: true,
  workers: true,
  minBatchSize: true,
  maxBatchSize: true,
  maxStaleness: true,
  maxQueuedGroups: true,
  trainOptions: true,
  rolloutTimeoutMs: true,
  maxExceptions: true,
  collapseAfter: true,
  evaluate: true,
  evaluateEvery: true,
  evaluateAtStart: true,
  evaluationTimeoutMs: true,
  servedPolicies: true,
  stallTimeoutMs: true,
  stateKey: true,
  onStep: true,
  onWarning: true,
  stopOnSigint: true,
};

/** Throws ConfigError with the name and the rule. */
export function readPipelineOptions<S>(options: PipelineOptions<S>): PipelineConfig<S> {
  refuseUnknownKeys('PipelineTrainer', options, Object.keys(optionNames));
  const { trainOptions = {}, minBatchSize = 4, maxStaleness = 2, ...rest } = options;
  const config: PipelineConfig<S> = {
    ...{ epochs: Number.POSITIVE_INFINITY, seed: 0, workers: 16, maxBatchSize: 2 * minBatchSize },
    ...{ maxQueuedGroups: (maxStaleness + 1) * minBatchSize, rolloutTimeoutMs: 1_200_000, maxExceptions: 0.5 },
    ...{ collapseAfter: 100 * minBatchSize, evaluateEvery: 20, evaluateAtStart: true, evaluationTimeoutMs: 3_600_000 },
    ...{ servedPolicies: 2, stallTimeoutMs: 1_800_000, stateKey: 'pipeline', stopOnSigint: false },
    onWarning: (message) => console.warn(message),
    ...rest,
    ...{ minBatchSize, maxStaleness },
    trainOptionsOf: typeof trainOptions === 'function' ? trainOptions : () => trainOptions,
  };
  checkConfig(config);
  if (typeof trainOptions !== 'function') encodeTrainOptions(trainOptions);
  return config;
}

function checkConfig<S>(config: PipelineConfig<S>): void {
  const { workers, minBatchSize, maxBatchSize, maxStaleness, maxQueuedGroups, untilStep, epochs } = config;
  const { collapseAfter, evaluateEvery, servedPolicies } = config;
  const { rolloutTimeoutMs, evaluationTimeoutMs, stallTimeoutMs } = config;
  if (config.scenarios.length === 0) throw new ConfigError('PipelineTrainer: needs at least one scenario, got none');
  const what = 'PipelineTrainer';
  requireIntegers(what, { workers, minBatchSize, collapseAfter, evaluateEvery, servedPolicies }, 1);
  requireIntegers(what, { rolloutTimeoutMs, evaluationTimeoutMs, stallTimeoutMs }, 1);
  requireIntegers(what, { untilStep, maxStaleness }, 0);
  requireIntegers(what, { maxBatchSize, maxQueuedGroups }, minBatchSize);
  if (epochs !== Number.POSITIVE_INFINITY) requireIntegers(what, { epochs }, 1);
  const { maxExceptions } = config;
  if (!(maxExceptions >= 0) || (maxExceptions >= 1 && !Number.isInteger(maxExceptions))) {
    throw new ConfigError(
      `PipelineTrainer: maxExceptions must be a count or a share between 0 and 1, got ${maxExceptions}`,
    );
  }
}
