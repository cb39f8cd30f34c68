/**
 * An agent's run as a trajectory, with no change to the agent. Layer 5.
 * Requests that the agent makes to our server are given the id of a rollout (`capture-scope.ts`); the server keeps what it samples for
 * them, and gives the histories when the agent has ended (`capture-result.ts`). Nothing is recorded here, and no client is changed.
 */
import { randomUUID } from 'node:crypto';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { Trajectory } from '../core/trajectory.ts';
import { watchRequests } from './capture-channels.ts';
import { fillTrajectory, keepFailed } from './capture-result.ts';
import { CaptureScope, type CaptureServer, currentScope, ROLLOUT_HEADER, runInScope } from './capture-scope.ts';
import { withDeadline } from './deadline.ts';
import type { Rollout } from './gather-run.ts';
import { TrainableModel } from './model.ts';

/** What an agent may use of its capture. One that calls the server with `fetch`, by whatever client, needs none of it. */
export interface CaptureContext {
  readonly rolloutId: string;
  /** What the calls become: set reward, metrics, metadata and logs here. Its messages are filled in when the agent has ended. */
  readonly trajectory: Trajectory;
  /** Base URL whose calls belong to this rollout whoever makes them: other clients, worker threads, other processes. */
  readonly baseURL: string;
  readonly apiKey: string;
  /** What the server knows the model by. */
  readonly modelName: string;
  /** Say the same as `baseURL`, for clients with the server's own base URL. */
  readonly headers: Readonly<Record<string, string>>;
  /** A `fetch` whose calls to the server belong to this rollout wherever it is called. */
  readonly fetch: typeof globalThis.fetch;
  /** Fires when the caller gives up. */
  readonly signal: AbortSignal;
}

/** May return anything. One that returns a Trajectory of its own, without messages, gets that one filled in. */
export type CapturedAgent<T> = (context: CaptureContext) => T | PromiseLike<T>;

export interface CaptureOptions {
  /** Whose calls are the trajectory. Default: those of the one model that the agent called. */
  readonly model?: TrainableModel;
  /** The policy step that must answer; default: the newest, at each call. */
  readonly step?: number;
  /** Models of the same server that the agent may call beside `model`, as a judge; their turns are left out. Default none. */
  readonly otherModels?: readonly string[];
  readonly signal?: AbortSignal;
}

export interface CaptureResult<T> {
  readonly trajectory: Trajectory;
  /** What the agent returned. */
  readonly output: T;
}

/**
 * Runs the agent and gives what the policy sampled for it. The first call's conversation is the trajectory's own; those that do not
 * continue it (sub-agents, a history that was rewritten or summed up) are its additional histories, in the order of their first calls.
 * Calls of captures inside this one belong to those. Sets the metrics `duration` and `completion_tokens` unless the agent did.
 * Throws what the agent throws (`failedTrajectory` has what was captured), DataError if it made no call, AbortedError by `signal`.
 */
export async function captureTrajectory<T>(
  agent: CapturedAgent<T>,
  options: CaptureOptions = {},
): Promise<CaptureResult<Awaited<T>>> {
  refuseUnknownKeys('captureTrajectory', options, ['model', 'step', 'otherModels', 'signal']);
  const server = checkModel(options);
  watchRequests();
  const scope = new CaptureScope(`capture-${randomUUID()}`, new Trajectory(), server?.baseURL ?? null);
  let output: Awaited<T>;
  try {
    output = await runInScope(scope, () =>
      withDeadline({ what: 'captured agent', timeoutMs: 0, signal: options.signal }, async (signal) =>
        agent(createContext(scope, options, signal)),
      ),
    );
  } catch (error) {
    await keepFailed(scope, options, error);
    throw error;
  }
  const trajectory: Trajectory = output instanceof Trajectory ? output : scope.trajectory;
  await fillTrajectory(trajectory, scope, options);
  return { trajectory, output };
}

/** The same as something to gather: `trajectoryGroup(Array.from({ length: 8 }, () => captureRollout(model, agent)))`. */
export function captureRollout(
  model: TrainableModel,
  agent: CapturedAgent<unknown>,
  options: Omit<CaptureOptions, 'model' | 'signal'> = {},
): Rollout {
  refuseUnknownKeys('captureRollout', options, ['step', 'otherModels']);
  return async ({ signal }) => (await captureTrajectory(agent, { ...options, model, signal })).trajectory;
}

/** The trajectory of the innermost capture that this code runs in; null outside of any. */
export function currentTrajectory(): Trajectory | null {
  return currentScope()?.trajectory ?? null;
}

function checkModel({ model, step, otherModels }: CaptureOptions): CaptureServer | null {
  if (model === undefined) {
    if (step === undefined && otherModels === undefined) return null;
    throw new ConfigError('captureTrajectory: step and otherModels need model, got none');
  }
  if (model instanceof TrainableModel) return model.endpoint();
  throw new ConfigError(
    'captureTrajectory: model must be a TrainableModel, since its server keeps what is sampled, got something else',
  );
}

function createContext(scope: CaptureScope, { model, step }: CaptureOptions, signal: AbortSignal): CaptureContext {
  const { rolloutId, trajectory, fetch } = scope;
  const server = (): CaptureServer => {
    const [first, ...others] = scope.servers();
    if (first !== undefined && others.length === 0) return first;
    const got = first === undefined ? 'none' : `${others.length + 1} servers`;
    throw new ConfigError(`captureTrajectory: give it the option model to use this; must have one server, got ${got}`);
  };
  return {
    rolloutId,
    trajectory,
    get baseURL() {
      return rolloutBaseURL(server(), rolloutId);
    },
    get apiKey() {
      return server().apiKey;
    },
    get modelName() {
      if (model !== undefined) return model.getInferenceName(step);
      throw new ConfigError('captureTrajectory: modelName needs the option model, got none');
    },
    headers: { [ROLLOUT_HEADER]: rolloutId },
    fetch,
    signal,
  };
}

function rolloutBaseURL({ baseURL }: CaptureServer, rolloutId: string): string {
  return `${baseURL.replace(/\/v1$/, '')}/rollouts/${rolloutId}/v1`;
}
