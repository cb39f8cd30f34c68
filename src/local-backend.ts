/** `LocalBackend`: the server and its engine on this computer, started by the first registration. Layer 6: the only SDK class that needs the server. */
import { ConfigError } from './core/errors.ts';
import { refuseUnknownKeys } from './core/options.ts';
import type { ApiAddress } from './sdk/call.ts';
import { removeCaptureServer } from './sdk/capture-scope.ts';
import { HttpBackend } from './sdk/http-backend.ts';
import type { ArtServer, ArtServerOptions, EngineTuning } from './server/index.ts';

export interface LocalBackendOptions {
  /** Folder of all runs: `<path>/<project>/models/<name>/`; default `.art`. */
  readonly path?: string;
  /** Threads, cache and batch sizes of the embedded engine. */
  readonly engine?: EngineTuning;
  /** Cache, endpoint and token of the Hugging Face hub; default: as Python's huggingface_hub, from the environment. */
  readonly hub?: NonNullable<ArtServerOptions['hub']>;
  /** Default 127.0.0.1. An address that other machines reach needs a key in `path` (`art keys create`). */
  readonly host?: string;
  /** Default a free one. */
  readonly port?: number;
  /** Further names by which clients may call the server; default none. */
  readonly allowedHosts?: readonly string[];
  /** Web pages that may call the server, as in `https://app.example`; default none. */
  readonly allowedOrigins?: readonly string[];
  /** Folders of base models that keys without the scope `admin` may name by path; default none: they name ids of the hub. */
  readonly modelRoots?: readonly string[];
  /** `none`: no text of a trajectory reaches the disk; rewards, metrics and weights do. Default `all`. */
  readonly store?: NonNullable<ArtServerOptions['store']>;
  /** Takes secrets and personal data out of what is stored: true, or which patterns and functions. Default false. */
  readonly redact?: NonNullable<ArtServerOptions['redact']>;
  /** Gets a line for each request to the server, as pino's loggers do; default: requests are not logged. */
  readonly logger?: NonNullable<ArtServerOptions['logger']>;
  /** Default: the logger, or console.warn. */
  readonly onWarning?: (message: string) => void;
  /** How often an engine that dies is started again, and how long requests wait for it. */
  readonly engineRestart?: NonNullable<ArtServerOptions['engineRestart']>;
  /** How much of what was sampled is kept, in memory and on the disk. */
  readonly completions?: NonNullable<ArtServerOptions['completions']>;
  /** Where checkpoints may be copied to and from; default: all that the environment's credentials reach. */
  readonly remotes?: NonNullable<ArtServerOptions['remotes']>;
  /** Choices of one model that may be sampled at once; more are refused with 429. Default 8,192. */
  readonly maxInFlight?: number;
  /** `train` calls of one model that may wait behind the running one; more are refused with 429. Default 8. */
  readonly maxWaitingTrainCalls?: number;
  /** How long `close` lets samples in flight finish, milliseconds; default 0. */
  readonly drainMs?: number;
  /** Another engine in place of the embedded one. */
  readonly createEngine?: NonNullable<ArtServerOptions['createEngine']>;
}

const OPTION_NAMES = [
  'path',
  'engine',
  'hub',
  'host',
  'port',
  'allowedHosts',
  'allowedOrigins',
  'modelRoots',
  'store',
  'redact',
  'logger',
  'onWarning',
  'engineRestart',
  'completions',
  'remotes',
  'maxInFlight',
  'maxWaitingTrainCalls',
  'drainMs',
  'createEngine',
];

/** Everything on this computer. After `close` nothing of it runs and nothing keeps the process alive; the runs stay on disk. */
export class LocalBackend extends HttpBackend implements AsyncDisposable {
  readonly #options: LocalBackendOptions;
  #running: Promise<ArtServer> | undefined;
  #isClosed = false;

  constructor(options: LocalBackendOptions = {}) {
    refuseUnknownKeys('LocalBackend', options, OPTION_NAMES);
    super();
    this.#options = options;
  }

  /** Root of the server, once it runs: `${url}/v1` serves OpenAI's API to any program on this computer. */
  async url(): Promise<string> {
    return (await this.#start()).url;
  }

  protected override async connect(): Promise<ApiAddress> {
    const { url, localKey } = await this.#start();
    return { baseURL: reachableUrl(url), apiKey: localKey };
  }

  /** Ends engines and server; a step under way is given up and leaves no trace; trackers get up to 10 s for what they hold. Idempotent. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const running = await this.#running?.catch(() => undefined);
    if (running !== undefined) removeCaptureServer(`${reachableUrl(running.url)}/v1`);
    await Promise.all([running?.close(), this.closeTrackers()]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #start(): Promise<ArtServer> {
    if (this.#isClosed) return Promise.reject(new ConfigError('LocalBackend: must be open, got one that was closed'));
    this.#running ??= startServer(this.#options).catch((error: unknown) => {
      this.#running = undefined; // so that the next call tries again
      throw error;
    });
    return this.#running;
  }
}

async function startServer(options: LocalBackendOptions): Promise<ArtServer> {
  const { path = '.art', engine, ...serverOptions } = options;
  // Loaded here, so that a program with a remote backend never loads the server.
  const { createArtServer } = await import('./server/index.ts');
  return createArtServer({ root: path, ...(engine && { engineTuning: engine }), ...serverOptions });
}

/** An address that stands for all of this computer's (0.0.0.0, ::) is reached by its loopback one. */
function reachableUrl(url: string): string {
  return url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:');
}
