/** Options of RULER and their defaults. Layer 5. */
import { requireIntegers } from '../core/options.ts';
import type { JudgeHealth } from './judge-health.ts';
import type { RoundOptions } from './judge-rounds.ts';
import { checkLengthLimit, type LengthLimit } from './judge-view.ts';
import { defaultRubric } from './ruler-prompt.ts';

/** Shown to the judge alone: a JSON value for all trajectories, or a function that gives one for each. */
export type ShownToJudge<T> =
  | string
  | number
  | boolean
  | null
  | readonly unknown[]
  | { readonly [name: string]: unknown }
  | ((trajectory: T, index: number) => unknown);

export interface JudgingOptions<T> {
  /** What makes one trajectory better than another; default `defaultRubric`. */
  readonly rubric?: string;
  /** What the right result is. */
  readonly groundTruth?: ShownToJudge<T>;
  /** What the environment looked like at the end, as the agent may claim what is not so. */
  readonly environmentState?: ShownToJudge<T>;
  /** The judge gives reasons before each score; default true. */
  readonly explanations?: boolean;
  /** Of the order in which trajectories are shown; default 0. */
  readonly seed?: number;
  /** Judgements, each in another order, whose mean is the score; default 1. */
  readonly repeats?: number;
  /** Default 0; null: the endpoint's own. */
  readonly temperature?: number | null;
  /** Of an answer; default 4096. */
  readonly maxTokens?: number;
  /** More fields of the request's body. */
  readonly extraBody?: Readonly<Record<string, unknown>>;
  /** Of one request; default 120,000. */
  readonly timeoutMs?: number;
  /** Further requests for scores that are missing; default 3. */
  readonly maxReasks?: number;
  /** Further requests after 429, 5xx or a broken connection; default 5. */
  readonly maxRetries?: number;
  /** Pause before the first retry, doubled with each; default 500. */
  readonly retryDelayMs?: number;
  /** Characters of JSON of a trajectory; default 200,000. */
  readonly maxCharacters?: number;
  /** Beyond `maxCharacters`: an error (default), or the middle is left out and counted. */
  readonly onTooLong?: 'error' | 'elide';
  /** Folder of the disk cache, default in the user's cache folder; false: none. */
  readonly cache?: string | false;
  /** Collects how the judge behaves. */
  readonly health?: JudgeHealth;
  /** Prompts and answers: to standard error, or to a function. */
  readonly debug?: boolean | ((text: string) => void);
  readonly signal?: AbortSignal;
}

export const judgingOptions: readonly string[] = [
  ...['rubric', 'groundTruth', 'environmentState', 'explanations', 'seed', 'repeats', 'temperature', 'maxTokens'],
  ...['extraBody', 'timeoutMs', 'maxReasks', 'maxRetries', 'retryDelayMs', 'maxCharacters', 'onTooLong', 'cache'],
  ...['health', 'debug', 'signal'],
];

export interface JudgingSettings extends RoundOptions, LengthLimit {
  readonly rubric: string;
  readonly seed: number;
  readonly repeats: number;
}

/** Throws ConfigError that names the option and its rule. */
export function checkJudgingOptions(options: JudgingOptions<never>): JudgingSettings {
  const settings: JudgingSettings = {
    rubric: options.rubric ?? defaultRubric,
    hasExplanations: options.explanations ?? true,
    seed: options.seed ?? 0,
    repeats: options.repeats ?? 1,
    temperature: options.temperature === undefined ? 0 : options.temperature,
    maxTokens: options.maxTokens ?? 4096,
    extraBody: options.extraBody ?? {},
    timeoutMs: options.timeoutMs ?? 120_000,
    maxReasks: options.maxReasks ?? 3,
    maxRetries: options.maxRetries ?? 5,
    retryDelayMs: options.retryDelayMs ?? 500,
    maxCharacters: options.maxCharacters ?? 200_000,
    onTooLong: options.onTooLong ?? 'error',
    signal: options.signal,
    debug:
      typeof options.debug === 'function' ? options.debug : options.debug ? (text) => console.error(text) : () => {},
  };
  checkLengthLimit(settings);
  const { repeats, maxTokens, timeoutMs, maxReasks, maxRetries, retryDelayMs } = settings;
  requireIntegers('ruler', { repeats, maxTokens, timeoutMs }, 1);
  requireIntegers('ruler', { maxReasks, maxRetries, retryDelayMs }, 0);
  return settings;
}
