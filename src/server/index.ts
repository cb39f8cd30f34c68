/** Public entry `agent-reinforcement-trainer/server`: one process that samples, trains and keeps the runs. Layer 5. */
import type { Hono } from 'hono';
import type { Logger } from 'pino';
import { refuseUnknownKeys } from '../core/options.ts';
import { createApp } from './app.ts';
import { type ListenOptions, startServer } from './listen.ts';
import { registerRolloutRoutes } from './rollouts/rollout-routes.ts';
import { createSecurity, openSecurity, type Security, type ServerSecurityOptions } from './security/security.ts';
import { createModelRegistry, type ModelRegistry, type ModelRegistryOptions } from './training/model-registry.ts';
import { registerTrainingRoutes } from './training/training-routes.ts';

export { createApp } from './app.ts';
export type { CompletionRecord, CompletionStore, ServedModel } from './inference/served-model.ts';
export type { ListenOptions } from './listen.ts';
export type { RedactOptions, StorageOptions } from './security/storage-policy.ts';
export type { TrainJob } from './training/jobs.ts';
export { createModelRegistry, type ModelRegistry, type ModelRegistryOptions } from './training/model-registry.ts';
export type { EngineTuning, ModelFiles } from './training/open-training-run.ts';
export { registerTrainingRoutes } from './training/training-routes.ts';
export type { TrainingRun } from './training/training-run.ts';

export interface ArtServerOptions
  extends Omit<ModelRegistryOptions, 'createEngine'>,
    ListenOptions,
    ServerSecurityOptions {
  /** Default: the embedded engine, a child process on this computer's CPU. */
  readonly createEngine?: ModelRegistryOptions['createEngine'];
  /** Gets a line for each request, and what the server warns of; default: requests are not logged, warnings go to the console. */
  readonly logger?: Logger;
  /** How long `close` lets samples in flight finish, milliseconds; new requests are refused as retryable meanwhile. Default 0. */
  readonly drainMs?: number;
}

export interface ArtServer {
  /** Root of the server; `${url}/v1` is the base URL of OpenAI's client, `${url}/api` the training API. */
  readonly url: string;
  /** Makes a client in this process the local user, also where the server wants keys; gone with the server. */
  readonly localKey: string;
  readonly app: Hono;
  readonly registry: ModelRegistry;
  /** Stops training between two engine calls, ends the engines, unlocks the model folders and closes the port. Idempotent. */
  readonly close: () => Promise<void>;
}

const optionNames: { readonly [K in keyof Required<ArtServerOptions>]: true } = {
  allowedHosts: true,
  allowedOrigins: true,
  completions: true,
  createEngine: true,
  drainMs: true,
  engineRestart: true,
  engineTuning: true,
  headersTimeoutMs: true,
  host: true,
  hub: true,
  loadModelFiles: true,
  logger: true,
  maxInFlight: true,
  maxWaitingTrainCalls: true,
  modelRoots: true,
  onWarning: true,
  port: true,
  probeTolerance: true,
  redact: true,
  remotes: true,
  requestTimeoutMs: true,
  root: true,
  store: true,
};

/** Starts a server that listens. Throws ConfigError if it cannot, and on an unknown option. */
export async function createArtServer(options: ArtServerOptions): Promise<ArtServer> {
  refuseUnknownKeys('createArtServer', options, Object.keys(optionNames));
  const { logger } = options;
  const onWarning = options.onWarning ?? (logger && ((message: string): void => logger.warn(message)));
  const warned = { ...options, ...(onWarning && { onWarning }) };
  const registry = createModelRegistry({ ...warned, createEngine: options.createEngine ?? startEmbeddedEngine });
  const security = await openSecurity(options.root, warned);
  const app = createArtApp(registry, security, logger);
  const running = await startServer(app, { ...options, isKeyed: security.keys?.isRequired() === true });
  let closing: Promise<void> | undefined;
  const close = async (): Promise<void> => {
    if (options.drainMs !== undefined && options.drainMs > 0) {
      registry.stopTraining();
      const left = await running.drain(options.drainMs);
      if (left > 0) onWarning?.(`server: ${left} samples in flight are cut short after ${options.drainMs} ms`);
    }
    // The port stops taking calls at once; answers of what the registry ends still go out.
    const [portClosed, registryClosed] = await Promise.allSettled([running.close(), registry.close()]);
    if (registryClosed.status === 'rejected') throw registryClosed.reason;
    if (portClosed.status === 'rejected') throw portClosed.reason;
  };
  return {
    url: running.url,
    localKey: security.localKey,
    app,
    registry,
    close: () => {
      closing ??= close();
      return closing;
    },
  };
}

/** The HTTP application over a registry, without a port. */
export function createArtApp(registry: ModelRegistry, security: Security = createSecurity(), logger?: Logger): Hono {
  return createApp({
    security,
    ...(logger && { logger }),
    models: registry.models,
    findModel: registry.findModel,
    ...(registry.maxInFlight !== undefined && { maxInFlight: registry.maxInFlight }),
    registerRoutes: (app) => {
      registerTrainingRoutes(app, registry);
      registerRolloutRoutes(app, registry);
    },
  });
}

/** Loaded when the first model is registered: a server with another engine does without it. */
const startEmbeddedEngine: ModelRegistryOptions['createEngine'] = async (options, signal) => {
  const { createEmbeddedEngine } = await import('../engines/embedded/engine.ts');
  return await createEmbeddedEngine(options, signal);
};
