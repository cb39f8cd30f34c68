/** What an environment is to a rollout, and how to reach one. Layer 5. */
import * as z from 'zod';
import { ConfigError, DataError } from '../core/errors.ts';

/** What an environment answers to a reset and to every step. */
export interface StepResult {
  readonly observation: Readonly<Record<string, unknown>>;
  /** Null where the environment gives none, as after a reset. */
  readonly reward: number | null;
  /** The episode is over: only a reset may follow. */
  readonly done: boolean;
}

export interface EnvironmentCallOptions {
  /** Default 60 s; 0 = no limit. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** One session of an environment, for one episode at a time. Yours may be any object with these methods; no server is needed then. */
export interface Environment {
  /** Begins an episode. Servers ignore parameters that they do not know; `seed` is the usual one. */
  reset(parameters?: Readonly<Record<string, unknown>>, options?: EnvironmentCallOptions): Promise<StepResult>;
  step(action: Readonly<Record<string, unknown>>, options?: EnvironmentCallOptions): Promise<StepResult>;
  /** Ends the session. Idempotent. */
  close(): Promise<void>;
}

/** Default limit of one call. */
export const callTimeoutMs = 60_000;

const stepResult = z.object({
  observation: z.record(z.string(), z.unknown()),
  reward: z.union([z.number(), z.boolean()]).nullish(),
  done: z.boolean().optional(),
});

/** The answer of a server. Throws DataError that begins with `what` for one of another shape. */
export function parseStepResult(value: unknown, what: string): StepResult {
  const { data, error } = stepResult.safeParse(value);
  if (data === undefined) {
    const issue = error?.issues[0];
    throw new DataError(
      `${what}: must be an object with observation, reward and done: ${issue?.path.join('.')}: ${issue?.message}`,
    );
  }
  const { observation, reward = null, done = false } = data;
  return { observation, reward: reward === null ? null : Number(reward), done };
}

/** The URL of a server with another protocol where it has one of the other family. Throws ConfigError for anything else. */
export function serverUrl(url: string, family: 'http' | 'ws'): URL {
  const parsed = URL.canParse(url) ? new URL(url) : null;
  const match = /^(http|ws)(s?):$/.exec(parsed?.protocol ?? '');
  if (parsed === null || match === null) {
    throw new ConfigError(`environment: must be a URL like http://127.0.0.1:8000 or ws://127.0.0.1:8000, got ${url}`);
  }
  parsed.protocol = `${family}${match[2]}:`;
  return parsed;
}
