/**
 * Calls of the training API (`wire/training.ts`): registration, state, training, log, history. Layer 5.
 * Reads and registration are retried; a `train` call is sent again once when the connection breaks, under the same idempotency key,
 * so that it trains once.
 */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { AbortedError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import {
  type HistoryResponse,
  historyResponse,
  type LogRequest,
  logResponse,
  type ModelInfo,
  modelInfo,
  type RegisterRequest,
  type RegistrationPending,
  registrationPending,
  type TrainProgress,
  type TrainRequest,
  trainProgress,
  trainResult,
  type TrainResult as WireTrainResult,
} from '../wire/training.ts';
import { type Api, type Call, type CallOptions, isConnectionError, modelPath } from './call.ts';

export interface TrainCallOptions extends CallOptions {
  readonly onProgress?: ((progress: TrainProgress) => void) | undefined;
}

export interface TrainingLimits {
  /** Longest time without news in a registration, in which the server downloads and loads the model; default 280 s. */
  readonly registerTimeoutMs?: number | undefined;
  /** Longest silence between two events of a `train` call; default 600 s. */
  readonly trainSilenceMs?: number | undefined;
}

export async function callRegister(
  api: Api,
  request: RegisterRequest,
  { signal }: CallOptions,
  { registerTimeoutMs = 280_000 }: TrainingLimits = {},
): Promise<ModelInfo> {
  const what = `registration of model ${request.name}`;
  const call: Call = {
    what,
    method: 'POST',
    path: '/api/models',
    body: request,
    timeoutMs: registerTimeoutMs,
    signal,
  };
  return waitForRegistration(what, registerTimeoutMs, () =>
    api.sendIdempotent(call, z.union([registrationPending, modelInfo])),
  );
}

export function callModelInfo(api: Api, name: string, { signal }: CallOptions): Promise<ModelInfo> {
  return api.sendIdempotent(
    { what: `state of model ${name}`, method: 'GET', path: modelPath(name), signal },
    modelInfo,
  );
}

export async function callTrain(
  api: Api,
  name: string,
  request: Omit<TrainRequest, 'idempotency_key'>,
  options: TrainCallOptions,
  limits: TrainingLimits = {},
): Promise<WireTrainResult> {
  const body: TrainRequest = { idempotency_key: randomUUID(), ...request };
  return callTrainingJob(
    api,
    { what: `training of model ${name}`, path: `${modelPath(name)}/train`, body },
    options,
    limits,
  );
}

/** Follows a call that trains to its result. Its body has an idempotency key: a broken connection sends it once more. */
export async function callTrainingJob(
  api: Api,
  job: { readonly what: string; readonly path: string; readonly body: { readonly idempotency_key: string } },
  options: TrainCallOptions,
  { trainSilenceMs = 600_000 }: TrainingLimits = {},
): Promise<WireTrainResult> {
  refuseUnknownKeys(job.what, options, ['signal', 'onProgress']);
  const { signal, onProgress } = options;
  const call: Call = { ...job, method: 'POST', timeoutMs: trainSilenceMs, signal };
  const follow = (): Promise<WireTrainResult> =>
    api.sendForEvents(call, (event) => {
      if (event.name === 'progress') onProgress?.(event.as(trainProgress));
      return event.name === 'result' ? event.as(trainResult) : undefined;
    });
  try {
    return await follow();
  } catch (error) {
    if (!isConnectionError(error)) throw error;
    return await follow();
  }
}

export async function callLog(
  api: Api,
  name: string,
  request: LogRequest,
  { signal }: CallOptions,
): Promise<{ step: number }> {
  const path = `${modelPath(name)}/log`;
  return api.send({ what: `log of model ${name}`, method: 'POST', path, body: request, signal }, logResponse);
}

export async function callHistory(api: Api, name: string, { signal }: CallOptions): Promise<HistoryResponse['rows']> {
  const rows: HistoryResponse['rows'] = [];
  // The server tells a bounded number of rows at a time.
  for (let offset: number | null = 0; offset !== null; ) {
    const path = `${modelPath(name)}/history${offset === 0 ? '' : `?offset=${offset}`}`;
    const page: HistoryResponse = await api.sendIdempotent(
      { what: `history of model ${name}`, method: 'GET', path, signal },
      historyResponse,
    );
    rows.push(...page.rows);
    offset = page.next_offset;
  }
  return rows;
}

/** Asks again while the server answers that it is still opening the model; throws AbortedError when nothing more happens. */
async function waitForRegistration(
  what: string,
  silenceMs: number,
  ask: () => Promise<ModelInfo | RegistrationPending>,
): Promise<ModelInfo> {
  let receivedBytes = -1;
  let changedAt = performance.now();
  for (;;) {
    const answer = await ask();
    if (!('status' in answer)) return answer;
    if (answer.received_bytes !== receivedBytes) changedAt = performance.now();
    receivedBytes = answer.received_bytes;
    if (performance.now() - changedAt > silenceMs) {
      const { total_bytes: total } = answer;
      throw new AbortedError(`${what}: nothing new within ${silenceMs} ms, at ${receivedBytes} of ${total} bytes`, {
        details: { isDeadline: true },
      });
    }
  }
}
