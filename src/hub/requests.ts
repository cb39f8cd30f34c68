/**
 * Requests to the hub: bounded, repeated where that may help, and with errors that say what to do. Layer 2.
 * The token goes to the endpoint's own origin only; a download that is redirected to a storage host goes there without it.
 * Source of statuses and `X-Error-Code`: huggingface_hub utils/_http.py.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { HubApiError, listFiles, modelInfo } from '@huggingface/hub';
import { AbortedError, ApiError, ArtError, ConfigError, fetchFailure, isTransient } from '../core/errors.ts';
import type { HubSettings } from './options.ts';

/** A file of a repository at one commit. */
export interface RemoteFile {
  readonly path: string;
  readonly size: number;
  /** SHA-1 of git's blob; of a large file it is that of a pointer, and `sha256` that of the content. */
  readonly blobId: string;
  readonly sha256: string | null;
  readonly xetHash: string | null;
}

/** The commit that a branch, tag or commit stands for. Throws ConfigError, ApiError. */
export async function resolveRevision(repo: string, revision: string, settings: HubSettings): Promise<string> {
  const { sha } = await ask(`base model ${repo}@${revision}`, settings, { repo, revision }, (fetch) =>
    modelInfo({ name: repo, revision, additionalFields: ['sha'], hubUrl: settings.endpoint, fetch }),
  );
  if (typeof sha === 'string' && /^[0-9a-f]{40}$/.test(sha)) return sha;
  throw new ApiError(`base model ${repo}: ${settings.endpoint} must answer with a commit, got ${String(sha)}`, 424);
}

/** All files at a commit. Throws ConfigError, ApiError. */
export async function listRemoteFiles(repo: string, commit: string, settings: HubSettings): Promise<RemoteFile[]> {
  return ask(`base model ${repo}: list of files`, settings, { repo, revision: commit }, async (fetch) => {
    const files: RemoteFile[] = [];
    const params = { repo, revision: commit, recursive: true, hubUrl: settings.endpoint, fetch };
    for await (const { type, path, size, oid, lfs, xetHash } of listFiles(params)) {
      if (type !== 'file') continue;
      files.push({ path, size, blobId: oid ?? '', sha256: lfs?.oid ?? null, xetHash: xetHash ?? null });
    }
    return files;
  });
}

/** A file's content from `offset` on; 206 if the hub obeyed the offset, 200 if it sends all. Not repeated. Throws as `explain` does. */
export async function openRemoteFile(
  repo: string,
  commit: string,
  path: string,
  offset: number,
  settings: HubSettings,
  signal: AbortSignal,
): Promise<Response> {
  const url = `${settings.endpoint}/${repo}/resolve/${commit}/${path.split('/').map(encodeURIComponent).join('/')}`;
  const range: Record<string, string> = offset > 0 ? { range: `bytes=${offset}-` } : {};
  const headers = { 'accept-encoding': 'identity', ...range };
  const response = await createFetch(settings, signal)(url, { headers });
  if (response.ok || response.status === 416) return response;
  await response.body?.cancel();
  throw explain(new HttpFailure(response, url), { repo, revision: commit, path }, settings);
}

/** Nobody answered, or nothing sensible. */
export function unreachable(what: string, settings: HubSettings, cause: unknown): ApiError {
  return new ApiError(
    `${what}: ${settings.endpoint} must be reachable, got ${fetchFailure(cause)}; a model that is in the cache ` +
      '(HF_HOME, HF_HUB_CACHE) is used without network when HF_HUB_OFFLINE=1',
    424,
    { cause, details: { code: 'hub_unreachable', param: 'base_model', isTransient: true } },
  );
}

/** Few, since a model in the cache may be used at once instead. */
const maxQuestionRetries = 2;

interface Subject {
  readonly repo: string;
  readonly revision: string;
  readonly path?: string;
}

/** A response that is an error, before it is explained. */
class HttpFailure extends Error {
  readonly status: number;
  readonly errorCode: string | null;

  constructor(response: Response, url: string) {
    super(`HTTP ${response.status} of ${new URL(url).origin}${new URL(url).pathname}`);
    this.status = response.status;
    this.errorCode = response.headers.get('x-error-code');
  }
}

/** Runs a call of `@huggingface/hub` with limits, and again while its failures may pass. */
async function ask<T>(
  what: string,
  settings: HubSettings,
  subject: Subject,
  call: (fetch: typeof globalThis.fetch) => Promise<T>,
): Promise<T> {
  for (let failures = 0; ; failures++) {
    let failure: HttpFailure | null = null;
    const fetch: typeof globalThis.fetch = async (input, init) => {
      const signal = AbortSignal.any([settings.signal, AbortSignal.timeout(settings.requestTimeoutMs)]);
      const response = await createFetch(settings, signal)(input, init);
      if (!response.ok) failure = new HttpFailure(response, String(input));
      return response;
    };
    try {
      return await call(fetch);
    } catch (cause) {
      if (settings.signal.aborted) throw new AbortedError(`${what}: was given up`, { cause });
      const error = failure !== null ? explain(failure, subject, settings) : describeFailure(what, settings, cause);
      if (!isTransient(error) || failures >= Math.min(settings.maxRetries, maxQuestionRetries)) throw error;
      await pause(failures, settings);
    }
  }
}

/** Waits longer each time. Throws AbortedError when the caller gives up. */
export async function pause(failures: number, settings: HubSettings): Promise<void> {
  await sleep(settings.retryDelayMs * 2 ** failures, undefined, { signal: settings.signal }).catch((cause: unknown) => {
    throw new AbortedError('hub: was given up between two tries', { cause });
  });
}

function describeFailure(what: string, settings: HubSettings, cause: unknown): ArtError {
  if (cause instanceof ArtError) return cause;
  if (cause instanceof Error && cause.name === 'TimeoutError') {
    return unreachable(what, settings, new Error(`nothing within ${settings.requestTimeoutMs} ms`));
  }
  // The one error class of theirs carries what the server said; the others are those of fetch.
  return unreachable(what, settings, cause instanceof HubApiError ? new Error(`HTTP ${cause.statusCode}`) : cause);
}

/** Adds the token where it belongs; `fetch` itself drops it when it follows a redirect to another origin. */
export function createFetch(settings: HubSettings, signal: AbortSignal): typeof globalThis.fetch {
  return async (input, init) => {
    const headers = new Headers(init?.headers);
    headers.set('user-agent', 'agent-reinforcement-trainer');
    const isOwn = new URL(String(input)).origin === new URL(settings.endpoint).origin;
    if (settings.token !== null && isOwn) headers.set('authorization', `Bearer ${settings.token}`);
    return globalThis.fetch(input, { ...init, headers, signal });
  };
}

/** The error that a status means to whoever asked for a model. */
function explain(failure: HttpFailure, { repo, revision, path }: Subject, settings: HubSettings): ArtError {
  const { status, errorCode } = failure;
  const what = `base model ${repo}`;
  const page = `${settings.endpoint}/${repo}`;
  const details = (code: string): { details: Record<string, unknown>; cause: unknown } => ({
    details: { code, param: 'base_model', status },
    cause: failure,
  });
  const token = settings.token === null ? 'HF_TOKEN is not set' : 'the token that is set has no access';
  if (errorCode === 'GatedRepo' || status === 403) {
    return new ConfigError(
      `${what}: access must be granted first (HTTP ${status}): accept its terms at ${page}, then set HF_TOKEN to a ` +
        `token of that account; ${token}`,
      details('model_gated'),
    );
  }
  if (errorCode === 'RevisionNotFound') {
    return new ConfigError(
      `${what}: revision must be a branch, tag or commit of ${page}, got ${revision}`,
      details('revision_not_found'),
    );
  }
  if (errorCode === 'EntryNotFound' && path !== undefined) {
    return new ConfigError(`${what}: ${path} must be a file of commit ${revision}`, details('file_not_found'));
  }
  if (status === 401 || status === 404) {
    return new ConfigError(
      `${what}: must be a model of ${settings.endpoint} (HTTP ${status}); a private one needs HF_TOKEN: ${token}`,
      details('hub_model_not_found'),
    );
  }
  const isTransientStatus = status === 408 || status === 429 || status >= 500;
  return new ApiError(`${what}: ${page} must be readable, got HTTP ${status}`, 424, {
    cause: failure,
    details: { code: 'hub_unreachable', param: 'base_model', status, isTransient: isTransientStatus },
  });
}
