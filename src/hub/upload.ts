/**
 * Files as one commit of a repository of the hub. Layer 2. Large files go as git-LFS objects, which the hub checks by their SHA-256 and
 * does not want twice; so a commit that failed is made again at the price of what was missing. Xet's own upload is left out.
 */
import { commitIter } from '@huggingface/hub';
import { AbortedError, ApiError, ArtError, ConfigError, fetchFailure, isTransient } from '../core/errors.ts';
import type { HubSettings } from './options.ts';
import { createFetch, pause } from './requests.ts';

export interface HubCommit {
  /** `org/name` */
  readonly repo: string;
  readonly branch: string;
  readonly title: string;
  readonly files: readonly { readonly path: string; readonly content: Blob }[];
  /** Gets the path of each large file when it is there. */
  readonly onFile: (path: string) => void;
}

/** Limit of the upload of one file or part, milliseconds. */
const uploadTimeoutMs = 1_800_000;
/** The hub looks through all files of a commit before it answers. */
const commitTimeoutMs = 120_000;

/** Makes the repository, private, if it is not there. Throws ConfigError if the token may not, ApiError if the hub fails. */
export async function createRepository(repo: string, settings: HubSettings): Promise<void> {
  const [organization, name] = repo.split('/');
  await repeat(settings, async () => {
    const response = await callHub(repo, settings, `${settings.endpoint}/api/repos/create`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ name, organization, type: 'model', private: true }),
    });
    await response.body?.cancel();
    if (!response.ok && response.status !== 409) throw explain(repo, response.status, settings);
  });
}

/** Returns the commit. Throws ConfigError if the token may not write, ApiError if the hub fails, AbortedError. */
export async function makeCommit(
  { repo, branch, title, files, onFile }: HubCommit,
  settings: HubSettings,
): Promise<string> {
  const operations = files.map(({ path, content }) => ({ operation: 'addOrUpdate' as const, path, content }));
  return repeat(settings, async () => {
    let status = 0;
    const fetch: typeof globalThis.fetch = async (input, init) => {
      const response = await callHub(repo, settings, String(input), init);
      if (!response.ok) status = response.status;
      return response;
    };
    const params = { repo, branch, title, operations, hubUrl: settings.endpoint, useXet: false, fetch };
    try {
      const commit = commitIter({ ...params, abortSignal: settings.signal });
      for (;;) {
        const next = await commit.next();
        if (next.done) return checkCommit(repo, next.value?.commit.oid);
        const { value } = next;
        if (value.event === 'fileProgress' && value.state === 'uploading' && value.progress === 1) onFile(value.path);
      }
    } catch (cause) {
      if (settings.signal.aborted) throw new AbortedError(`hub ${repo}: upload was given up`, { cause });
      if (cause instanceof ArtError) throw cause;
      throw status > 0 ? explain(repo, status, settings) : unreachable(repo, cause);
    }
  });
}

async function callHub(repo: string, settings: HubSettings, url: string, init?: RequestInit): Promise<Response> {
  const limitMs = init?.method === 'PUT' ? uploadTimeoutMs : Math.max(settings.requestTimeoutMs, commitTimeoutMs);
  const timeout = AbortSignal.timeout(limitMs);
  try {
    return await createFetch(settings, AbortSignal.any([settings.signal, timeout]))(url, init);
  } catch (cause) {
    if (settings.signal.aborted) throw new AbortedError(`hub ${repo}: upload was given up`, { cause });
    throw unreachable(repo, timeout.aborted ? new Error(`nothing within ${limitMs} ms`) : cause);
  }
}

/** Again, a bounded number of times, while its failures may pass. */
async function repeat<T>(settings: HubSettings, work: () => Promise<T>): Promise<T> {
  for (let failures = 0; ; failures++) {
    try {
      return await work();
    } catch (error) {
      if (!isTransient(error) || failures >= settings.maxRetries) throw error;
      await pause(failures, settings);
    }
  }
}

function checkCommit(repo: string, oid: unknown): string {
  if (typeof oid === 'string' && /^[0-9a-f]{40}$/.test(oid)) return oid;
  throw new ApiError(`hub ${repo}: must answer with a commit, got ${String(oid)}`, 502);
}

function unreachable(repo: string, cause: unknown): ApiError {
  return new ApiError(`hub ${repo}: the hub must answer, got ${fetchFailure(cause)}`, 502, {
    cause,
    details: { code: 'hub_unreachable', isTransient: true },
  });
}

function explain(repo: string, status: number, settings: HubSettings): ArtError {
  const token = settings.token === null ? 'HF_TOKEN is not set' : 'the token that is set may not';
  if (status === 401 || status === 403 || status === 404) {
    return new ConfigError(`hub ${repo}: must be writable with the server's HF_TOKEN (HTTP ${status}): ${token}`, {
      details: { code: 'hub_forbidden', status },
    });
  }
  const isPassing = status === 408 || status === 412 || status === 429 || status >= 500;
  return new ApiError(`hub ${repo}: must take the commit, got HTTP ${status}`, 502, {
    details: { code: 'hub_failed', status, isTransient: isPassing },
  });
}
