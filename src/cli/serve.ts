/** `art serve`: one model behind an OpenAI-compatible server on this computer, until Ctrl-C. Layer 6. */
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { Command, InvalidArgumentError, Option } from 'commander';
import { ConfigError, messageOf } from '../core/errors.ts';
import { LocalBackend, type LocalBackendOptions } from '../local-backend.ts';
import { TrainableModel } from '../sdk/model.ts';
import { createStoragePolicy } from '../server/security/storage-policy.ts';
import { createStopSignal } from './stop-signal.ts';
import { createLogger, type LogLevel, logLevels, startTracing } from './telemetry.ts';

interface ServeOptions extends EngineFlags {
  readonly model: string;
  readonly name: string;
  readonly project: string;
  readonly path: string;
  readonly host: string;
  readonly port: number;
  readonly allowHost: readonly string[];
  readonly allowOrigin: readonly string[];
  readonly modelRoot: readonly string[];
  readonly allowRemote: readonly string[];
  readonly store: 'all' | 'none';
  readonly redact: boolean;
  readonly rank: number;
  readonly alpha: number;
  readonly seed: number;
  readonly chatTemplate?: string;
  readonly drainSeconds: number;
  readonly logLevel: LogLevel;
}

type EngineOptions = NonNullable<LocalBackendOptions['engine']>;

interface EngineFlags {
  readonly trainThreads?: number;
  readonly sampleThreads?: number;
  readonly cacheTokens?: number;
  readonly microbatchTokens?: number;
  readonly rolloutPrecision?: EngineOptions['rolloutPrecision'];
  readonly memoryCheck: boolean;
}

/** The action resolves when SIGINT or SIGTERM has come and everything is closed. */
export function createServeCommand(): Command {
  return new Command('serve')
    .description('Serve a model and train it through the same server (RemoteBackend). Resumes a run of this name.')
    .requiredOption('--model <model>', 'folder, .gguf file, or id of the hub: org/name[@revision][:file.gguf]')
    .option('--name <name>', 'name that requests use', 'agent')
    .option('--project <project>', 'project the run belongs to', 'default')
    .option('--path <directory>', 'folder of all runs', '.art')
    .option('--host <host>', 'address to listen on; one that other machines reach needs art keys create', '127.0.0.1')
    .option('--port <port>', 'port; 0 = a free one', parseInteger, 8000)
    .option('--allow-host <name>', 'further name by which clients call the server; may be repeated', collect, [])
    .option('--allow-origin <origin>', 'web page that may call the server; may be repeated', collect, [])
    .option('--model-root <folder>', 'folder of base models that training keys may name; may be repeated', collect, [])
    .option(
      '--allow-remote <prefix>',
      'place that checkpoints may be copied to and from; may be repeated',
      collectPlaces,
      [],
    )
    .addOption(
      new Option('--store <what>', 'texts of trajectories: none keeps them off the disk')
        .choices(['all', 'none'])
        .default('all'),
    )
    .option('--redact', 'take keys, tokens, addresses, card and phone numbers out of what is stored', false)
    .option('--rank <rank>', 'rank of the LoRA adapter', parseInteger, 8)
    .option('--alpha <alpha>', 'alpha of the LoRA adapter', parseInteger, 16)
    .option('--seed <seed>', "seed of the adapter's initial weights", parseInteger, 0)
    .option('--chat-template <file>', "Jinja file that takes the place of the model's chat template")
    .option('--train-threads <threads>', 'threads of training (default: cores of this computer)', parseInteger)
    .option(
      '--sample-threads <threads>',
      'threads of sampling (default: 1 for models up to 2 million parameters, else cores)',
      parseInteger,
    )
    .option(
      '--cache-tokens <tokens>',
      'tokens that the KV cache holds (default: 65536, or as many as fit)',
      parseInteger,
    )
    .option(
      '--microbatch-tokens <tokens>',
      'tokens of one training pass (default: 512, large models 2048)',
      parseInteger,
    )
    .addOption(
      new Option('--rollout-precision <precision>', 'of rollouts (default: float32, which is exact)').choices([
        'float32',
        'int8',
      ]),
    )
    .addOption(
      new Option(
        '--log-level <level>',
        'least level of the JSON lines on standard error; info has one for each request',
      )
        .choices(logLevels)
        .default('warn'),
    )
    .option('--drain-seconds <seconds>', 'how long samples in flight may finish when it is stopped', parseInteger, 10)
    .option('--no-memory-check', 'load a model although memory may not suffice')
    .action(serve);
}

async function serve(options: ServeOptions): Promise<void> {
  const { model: baseModel, name, project, path, host, port, rank, alpha, seed } = options;
  const stop = createStopSignal();
  const template = options.chatTemplate === undefined ? {} : { chatTemplate: await readTemplate(options.chatTemplate) };
  const tracing = await startTracing();
  try {
    await using backend = new LocalBackend({
      path,
      host,
      port,
      allowedHosts: options.allowHost,
      allowedOrigins: options.allowOrigin,
      modelRoots: options.modelRoot,
      ...(options.allowRemote.length > 0 && { remotes: { allowed: options.allowRemote } }),
      store: options.store,
      redact: options.redact,
      logger: createLogger(options.logLevel, createStoragePolicy(options).redact),
      drainMs: options.drainSeconds * 1000,
      engine: engineOptions(options),
    });
    const model = new TrainableModel({ name, project, baseModel, lora: { rank, alpha }, seed, ...template });
    await serveUntil(stop, backend, model);
  } finally {
    await tracing?.close();
  }
}

async function serveUntil(stop: AbortSignal, backend: LocalBackend, model: TrainableModel): Promise<void> {
  try {
    await model.register(backend, { signal: stop });
  } catch (error) {
    if (!stop.aborted) throw error;
    console.log('Stopped before the model was loaded.');
    return;
  }
  const url = await backend.url();
  console.log(`${model.name}, step ${await model.getStep()}`);
  console.log(`OpenAI base URL  ${url}/v1`);
  console.log(`training         new RemoteBackend({ baseURL: '${url}' })`);
  console.log('Ctrl-C stops it: samples in flight may finish, a second Ctrl-C ends it at once.');
  if (!stop.aborted) await once(stop, 'abort');
}

function engineOptions(flags: EngineFlags): EngineOptions {
  const { trainThreads, sampleThreads, cacheTokens, microbatchTokens, rolloutPrecision, memoryCheck } = flags;
  return {
    isMemoryChecked: memoryCheck,
    ...(trainThreads !== undefined && { trainThreads }),
    ...(sampleThreads !== undefined && { sampleThreads }),
    ...(cacheTokens !== undefined && { cacheTokens }),
    ...(microbatchTokens !== undefined && { microbatchTokens }),
    ...(rolloutPrecision !== undefined && { rolloutPrecision }),
  };
}

async function readTemplate(path: string): Promise<string> {
  return readFile(path, 'utf8').catch((cause: unknown) => {
    throw new ConfigError(`--chat-template: must be a file that can be read, got ${messageOf(cause)}`, { cause });
  });
}

function parseInteger(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('must be a whole number of at most nine digits.');
  return Number(text);
}

function collect(value: string, values: readonly string[]): readonly string[] {
  return [...values, value];
}

/** A prefix that names no place would allow nothing, and say so only when a copy is refused. */
function collectPlaces(value: string, values: readonly string[]): readonly string[] {
  if (!/^(s3|hf):\/\/[\w.-]/.test(value)) throw new InvalidArgumentError('must begin with s3://bucket or hf://org.');
  return collect(value, values);
}
