/** From what the server kept of a captured rollout to its trajectory. Layer 5. */
import { ApiError, DataError } from '../core/errors.ts';
import type { ChatChoice, ChatMessage, History, Trajectory } from '../core/trajectory.ts';
import { type CapturedRollout, capturedRollout, type RolloutHistory } from '../wire/rollouts.ts';
import { createApi } from './call.ts';
import type { CaptureScope, CaptureServer } from './capture-scope.ts';
import type { TrainableModel } from './model.ts';

/** What a capture was asked for. */
export interface CaptureRules {
  readonly model?: TrainableModel;
  readonly step?: number;
  readonly otherModels?: readonly string[];
  readonly signal?: AbortSignal;
}

/** A failure must be told soon, also where the server does not answer. */
const FAILED_CAPTURE_MS = 5000;

/** What was captured before the agent failed. */
const failed = new WeakMap<object, Trajectory>();

/** Ends the rollout at the server and fills the trajectory with its histories. Throws DataError if they are not what was asked for. */
export async function fillTrajectory(trajectory: Trajectory, scope: CaptureScope, rules: CaptureRules): Promise<void> {
  const entries = trajectory.allChoices().length + trajectory.messagesAndChoices.length;
  if (entries > 0) {
    throw new DataError(
      `captureTrajectory: the capture fills in the messages, so the trajectory must have none, got ${entries}; do not push them`,
    );
  }
  const models = await takeRollouts(scope, rules.signal);
  checkUnknown(scope);
  const histories = chooseHistories(models, scope, rules);
  setHistories(trajectory, histories);
  checkSteps(trajectory, rules);
  if (trajectory.metrics.duration === undefined) trajectory.finish();
  trajectory.metrics.completion_tokens ??= sampledTokens(histories);
}

/** Ends the rollout of an agent that failed with `error`, and keeps what there is of it. Never throws. */
export async function keepFailed(scope: CaptureScope, rules: CaptureRules, error: unknown): Promise<void> {
  const { trajectory } = scope;
  try {
    const models = await takeRollouts(scope, AbortSignal.timeout(FAILED_CAPTURE_MS));
    const name = rules.model?.name ?? models[0]?.model;
    setHistories(trajectory, models.find(({ model }) => model === name)?.histories ?? []);
  } catch {
    // The agent's own error is the one to tell: no call, or a server that does not answer, leaves the trajectory without messages.
  }
  if (typeof error === 'object' && error !== null) failed.set(error, trajectory);
}

/** What a captured agent had done when it failed with this error, with its reward, metrics and logs so far; null for any other error. */
export function failedTrajectory(error: unknown): Trajectory | null {
  return typeof error === 'object' && error !== null ? (failed.get(error) ?? null) : null;
}

type CapturedModels = CapturedRollout['models'];

/** Ends the rollout wherever it had calls; none of a model is none of what comes back. */
async function takeRollouts(scope: CaptureScope, signal: AbortSignal | undefined): Promise<CapturedModels> {
  const servers = scope.reached.size > 0 ? [...scope.reached] : scope.servers();
  const taken = await Promise.all(servers.map((server) => takeRollout(server, scope.rolloutId, signal)));
  return taken.flat();
}

async function takeRollout(
  { baseURL, apiKey }: CaptureServer,
  rolloutId: string,
  signal: AbortSignal | undefined,
): Promise<CapturedModels> {
  const api = createApi(() => ({ baseURL: baseURL.replace(/\/v1$/, ''), apiKey }));
  const what = `capture of rollout ${rolloutId}`;
  const path = `/api/rollouts/${rolloutId}/capture`;
  try {
    return (await api.sendIdempotent({ what, method: 'POST', path, signal }, capturedRollout)).models;
  } catch (error) {
    if (error instanceof ApiError && error.details.code === 'rollout_not_found') return [];
    throw error;
  }
}

/** Calls of which nobody knows whether they belong here may be missing. */
function checkUnknown({ unknownRequests, rolloutId }: CaptureScope): void {
  if (unknownRequests === 0) return;
  throw new DataError(
    `captureTrajectory: every request to the model must be made by its caller, got ${unknownRequests} that an undici dispatcher had ` +
      'queued or repeated, which hides whose they are. Let agents use a dispatcher without a limit of connections and without retries ' +
      "(the default one), or give their client the context's fetch, headers or baseURL",
    { details: { unknownRequests, rolloutId } },
  );
}

function noCalls(scope: CaptureScope): DataError {
  const baseURLs = scope.servers().map(({ baseURL }) => baseURL);
  if (baseURLs.length === 0) {
    return new DataError('captureTrajectory: needs a registered model, got none; await model.register(backend)');
  }
  const others = [...scope.otherPlaces];
  const got =
    scope.taggedRequests > 0
      ? `${scope.taggedRequests} requests, none of which was answered with a sampled turn`
      : `no call${others.length === 0 ? '' : `; requests went to ${others.join(', ')}`}`;
  const own = baseURLs.map((baseURL) => `${baseURL.replace(/\/v1$/, '')}/rollouts/ID/v1`);
  return new DataError(
    `captureTrajectory: the agent must call the model at ${baseURLs.join(' or ')}, got ${got}. ` +
      'Clients on the built-in fetch or undici are seen with that base URL; axios, node:http, worker threads and other processes ' +
      `need the context's baseURL (${own.join(' or ')})`,
    { details: { baseURLs, taggedRequests: scope.taggedRequests, otherPlaces: others } },
  );
}

/** The histories of the model that is captured for. A model that nobody named would not be trained, which nothing else would tell. */
function chooseHistories(
  models: CapturedModels,
  scope: CaptureScope,
  { model, otherModels = [] }: CaptureRules,
): readonly RolloutHistory[] {
  const [first] = models;
  const names = models.map((each) => each.model);
  if (first === undefined) throw noCalls(scope);
  if (model === undefined) {
    if (models.length === 1) return first.histories;
    throw new DataError(
      `captureTrajectory: give it the option model, whose calls are the trajectory; called were ${names.join(', ')}`,
    );
  }
  const odd = names.filter((name) => name !== model.name && !otherModels.includes(name));
  const own = models.find((each) => each.model === model.name);
  if (odd.length > 0 || own === undefined) {
    throw new DataError(
      `captureTrajectory: the agent must call ${model.name}, got calls of ${names.join(', ')}, of which only those of ${model.name} ` +
        `are trained. Let it ask for ${model.name}; models that it may call beside it are named in otherModels`,
    );
  }
  return own.histories;
}

function setHistories(trajectory: Trajectory, histories: readonly RolloutHistory[]): void {
  const [main = { messagesAndChoices: [], tools: null }, ...others] = histories.map(toHistory);
  trajectory.messagesAndChoices = main.messagesAndChoices;
  trajectory.tools = main.tools;
  trajectory.additionalHistories = others;
}

function toHistory({ entries, tools }: RolloutHistory): History {
  return { messagesAndChoices: entries.map(toEntry), tools };
}

function toEntry(entry: RolloutHistory['entries'][number]): ChatMessage | ChatChoice {
  const { message, choice, policy_step: step, finish_reason: finishReason } = entry;
  if (choice === undefined || step === undefined || finishReason === undefined) return message as ChatMessage;
  return {
    index: choice.choice_index,
    finish_reason: finishReason,
    message: message as ChatChoice['message'],
    art: { completion_id: choice.completion_id, policy_step: step },
  };
}

function checkSteps(trajectory: Trajectory, { model, step }: CaptureRules): void {
  const odd = trajectory.allChoices().find(({ art }) => step !== undefined && art?.policy_step !== step);
  if (odd === undefined) return;
  throw new DataError(
    `captureTrajectory: every turn must be of step ${step}, got one of step ${odd.art?.policy_step}; ` +
      `let the agent ask for ${model?.name}@${step}, which is the context's modelName`,
  );
}

function sampledTokens(histories: readonly RolloutHistory[]): number {
  const entries = histories.flatMap((history) => history.entries);
  return entries.reduce((sum, entry) => sum + (entry.completion_tokens ?? 0), 0);
}
