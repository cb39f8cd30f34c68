/**
 * Options of the hub, and what the environment says where they are left out. Layer 2.
 * Variables and defaults are those of Python's huggingface_hub (constants.py, utils/_auth.py), so that both share cache and login.
 */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { getHFHubCachePath } from '@huggingface/hub';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { readTextFile } from '../formats/atomic-files.ts';

export interface DownloadProgress {
  /** `org/name` */
  readonly repo: string;
  /** File that is being received. */
  readonly file: string;
  /** Of all files that were missing. */
  readonly receivedBytes: number;
  readonly totalBytes: number;
}

export interface HubOptions {
  /** Default: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or `~/.cache/huggingface/hub`. */
  readonly cacheDirectory?: string;
  /** Default: `HF_ENDPOINT`, or `https://huggingface.co`. */
  readonly endpoint?: string;
  /** Default: `HF_TOKEN`, or the login of Python's `hf auth login`. Never appears in messages. */
  readonly token?: string;
  /** Nothing is asked of the network; default: `HF_HUB_OFFLINE`. */
  readonly isOffline?: boolean;
  /** Limit of one question to the hub, milliseconds; default 30,000. */
  readonly requestTimeoutMs?: number;
  /** Longest pause within a download, milliseconds; default 30,000. */
  readonly silenceTimeoutMs?: number;
  /** Tries that may fail one after another without a byte between them; default 5. */
  readonly maxRetries?: number;
  /** Wait before the first of them, doubled each time, milliseconds; default 1,000. */
  readonly retryDelayMs?: number;
  readonly onProgress?: (progress: DownloadProgress) => void;
  /** Default: nothing. */
  readonly onWarning?: (message: string) => void;
  readonly signal?: AbortSignal;
}

export type HubSettings = Required<Omit<HubOptions, 'token' | 'signal'>> & {
  readonly token: string | null;
  readonly signal: AbortSignal;
};

const optionNames: { readonly [K in keyof Required<HubOptions>]: true } = {
  cacheDirectory: true,
  endpoint: true,
  token: true,
  isOffline: true,
  requestTimeoutMs: true,
  silenceTimeoutMs: true,
  maxRetries: true,
  retryDelayMs: true,
  onProgress: true,
  onWarning: true,
  signal: true,
};

/** Throws ConfigError on an unknown option, an endpoint that is no HTTP address and a token that no header can carry. */
export async function readHubSettings(options: HubOptions): Promise<HubSettings> {
  refuseUnknownKeys('hub', options, Object.keys(optionNames));
  const { env } = process;
  return {
    cacheDirectory: expandHome(options.cacheDirectory ?? getHFHubCachePath()),
    endpoint: checkEndpoint(options.endpoint ?? (env.HF_ENDPOINT || 'https://huggingface.co')),
    token: cleanToken(options.token ?? (env.HF_TOKEN || env.HUGGING_FACE_HUB_TOKEN) ?? (await readLogin())),
    isOffline: options.isOffline ?? isTrue(env.HF_HUB_OFFLINE || env.TRANSFORMERS_OFFLINE),
    requestTimeoutMs: options.requestTimeoutMs ?? 30_000,
    silenceTimeoutMs: options.silenceTimeoutMs ?? 30_000,
    maxRetries: options.maxRetries ?? 5,
    retryDelayMs: options.retryDelayMs ?? 1_000,
    onProgress: options.onProgress ?? (() => {}),
    onWarning: options.onWarning ?? (() => {}),
    signal: options.signal ?? new AbortController().signal,
  };
}

function checkEndpoint(text: string): string {
  const isHttp = URL.canParse(text) && /^https?:$/.test(new URL(text).protocol);
  if (!isHttp) throw new ConfigError(`HF_ENDPOINT: must be a URL like https://huggingface.co, got ${text}`);
  return text.replace(/\/+$/, '');
}

async function readLogin(): Promise<string | null> {
  const { HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME } = process.env;
  const home = HF_HOME ?? join(XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'huggingface');
  return await readTextFile(expandHome(HF_TOKEN_PATH ?? join(home, 'token')));
}

function cleanToken(token: string | null): string | null {
  const text = token?.trim() ?? '';
  // The error that `fetch` throws for such a header would quote it.
  if (!/^[!-~]*$/.test(text)) {
    throw new ConfigError(`HF_TOKEN: must be printable ASCII without spaces, got ${text.length} characters, not shown`);
  }
  return text === '' ? null : text;
}

function isTrue(value: string | undefined): boolean {
  return ['1', 'ON', 'YES', 'TRUE'].includes(value?.toUpperCase() ?? '');
}

function expandHome(path: string): string {
  return path === '~' || path.startsWith('~/') ? join(homedir(), path.slice(1)) : path;
}
