/**
 * The trainer's thread inside the engine's process. Layer 4.
 * ONNX Runtime blocks the thread that runs a graph; training has its own, so that sampling goes on meanwhile.
 * Files of `save`: `adapter_config.json` and `adapter_model.safetensors` (full-parameter training: `model.safetensors`), and
 * `optimizer.safetensors` with both moments of every trained tensor.
 */
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parentPort } from 'node:worker_threads';
import { CheckpointError, EngineError, messageOf } from '../../core/errors.ts';
import { openModel } from '../../formats/model-source.ts';
import { readAdapterFiles, writeAdapterFiles } from '../../formats/peft.ts';
import {
  type FloatTensor,
  readSafetensors,
  readSafetensorsHeader,
  toSafetensors,
  writeSafetensors,
} from '../../formats/safetensors.ts';
import { createAdapter, type LoraSpec, loraSpec } from '../../nn/lora.ts';
import { checkParameters, type Parameter, parameterShapes } from '../../nn/parameters.ts';
import type { AdamWState } from '../../train/optimizer.ts';
import type { TrainedWeights } from '../../train/passes.ts';
import { startTrainer } from '../../train/start-trainer.ts';
import type { Trainer } from '../../train/trainer.ts';
import type { ScoreSource } from '../engine.ts';
import { bakedWeights } from './baked-weights.ts';
import type { EmbeddedEngineOptions } from './options.ts';
import { type Call, type Outcome, toPlainError } from './protocol.ts';

export type TrainerCall =
  | Extract<Call, { name: 'start' | 'forwardBackward' | 'optimStep' | 'save' | 'load' | 'logprobs' | 'score' }>
  | { readonly name: 'snapshot'; readonly request: null };

/** Totals since start. */
export interface TrainerCounters {
  readonly trainedTokens: number;
  readonly trainingSeconds: number;
  readonly gradientSteps: number;
}

export interface TrainerAnswer {
  readonly id: number;
  readonly outcome: Outcome;
  readonly counters: TrainerCounters;
}

interface TrainerState {
  readonly options: EmbeddedEngineOptions;
  readonly lora: LoraSpec | null;
  readonly trainer: Trainer;
}

let state: TrainerState | null = null;
/** Weights of the last `score`, kept for the next one alone: a batch comes in several. */
let reference: { readonly key: string; readonly weights: TrainedWeights } | null = null;
let trainedTokens = 0;
let trainingSeconds = 0;

async function start(options: EmbeddedEngineOptions): Promise<null> {
  const model = await openModel(options.modelDirectory);
  const { config } = model;
  const parameters = await model.readTensors();
  checkParameters(parameters, parameterShapes(config), options.modelDirectory);
  const lora = options.training.kind === 'lora' ? loraSpec(options.training, config) : null;
  const trained = lora ? createAdapter(config, lora, options.seed) : parameters;
  const baked = bakedWeights(parameters, lora !== null);
  const {
    trainThreads: threads = availableParallelism(),
    microbatchTokens,
    activationRecomputation = 'auto',
  } = options;
  const trainer = await startTrainer(
    { config, lora, parameters, baked, trained },
    { threads, activationRecomputation, ...(microbatchTokens === undefined ? {} : { microbatchTokens }) },
  );
  state = { options, lora, trainer };
  return null;
}

function started(): TrainerState {
  if (!state) throw new EngineError('trainer: must be started before any other call');
  return state;
}

async function save({ options, lora, trainer }: TrainerState, directory: string): Promise<null> {
  if (lora) {
    const baseModel = options.modelDirectory;
    await writeAdapterFiles(directory, { config: lora, tensors: trainer.trained, baseModel });
  } else {
    await writeSafetensors(join(directory, 'model.safetensors'), toSafetensors(trainer.trained), { format: 'pt' });
  }
  const moments = new Map<string, FloatTensor>();
  for (const [name, { shape }] of trainer.trained) {
    const { first, second } = trainer.optimizer.moments.get(name)!;
    moments.set(`first/${name}`, { shape, data: first });
    moments.set(`second/${name}`, { shape, data: second });
  }
  const metadata = { format: 'pt', updates: String(trainer.optimizer.updates) };
  await writeSafetensors(join(directory, 'optimizer.safetensors'), toSafetensors(moments), metadata);
  return null;
}

async function load(state: TrainerState, directory: string): Promise<null> {
  const { trainer } = state;
  const { weights, optimizer } = await readCheckpoint(state, directory).catch((cause: unknown) => {
    throw checkpointError(directory, cause);
  });
  for (const [name, { data }] of trainer.trained) data.set(weights.get(name)!.data);
  trainer.restoreOptimizer(optimizer);
  return null;
}

function checkpointError(directory: string, cause: unknown): CheckpointError {
  if (cause instanceof CheckpointError) return cause;
  return new CheckpointError(`${directory}: must hold a checkpoint of this model, got ${messageOf(cause)}`, { cause });
}

/** Undefined: the weights being trained. */
async function scoringWeights(current: TrainerState, source: ScoreSource): Promise<TrainedWeights | undefined> {
  if (source.kind === 'trainer') return undefined;
  const key = source.kind === 'base' ? 'base' : `checkpoint ${source.directory}`;
  if (reference?.key !== key) {
    reference = null; // Not two of them at once.
    const weights =
      source.kind === 'base'
        ? await baseWeights(current)
        : await readWeights(current, source.directory).catch((cause: unknown) => {
            throw checkpointError(source.directory, cause);
          });
    reference = { key, weights };
  }
  return reference.weights;
}

/** An adapter of zeros adds nothing, so the base's bits stay. */
async function baseWeights({ options, lora, trainer }: TrainerState): Promise<TrainedWeights> {
  if (!lora) return (await openModel(options.modelDirectory)).readTensors();
  const zeros = [...trainer.trained].map(
    ([name, { shape, data }]) => [name, { shape, data: new Float32Array(data.length) }] as const,
  );
  return new Map(zeros);
}

async function readWeights(
  { lora, trainer }: TrainerState,
  directory: string,
): Promise<ReadonlyMap<string, FloatTensor>> {
  const weights = lora
    ? await readAdapter(lora, directory)
    : await readSafetensors(join(directory, 'model.safetensors'));
  const shapes = new Map([...trainer.trained].map(([name, { shape }]) => [name, shape]));
  checkParameters(weights, shapes, directory);
  return weights;
}

/** Everything is read and checked before anything is taken over. */
async function readCheckpoint(current: TrainerState, directory: string) {
  const weights = await readWeights(current, directory);
  const { trainer } = current;
  const optimizer = await readOptimizer(trainer.trained, join(directory, 'optimizer.safetensors'));
  return { weights, optimizer };
}

async function readAdapter(lora: LoraSpec, directory: string): Promise<ReadonlyMap<string, FloatTensor>> {
  const { config, tensors } = await readAdapterFiles(directory);
  if (config.rank !== lora.rank || config.alpha !== lora.alpha) {
    throw new CheckpointError(
      `${directory}: adapter must have rank ${lora.rank} and alpha ${lora.alpha}, got ${config.rank} and ${config.alpha}`,
    );
  }
  return tensors;
}

async function readOptimizer(trained: ReadonlyMap<string, Parameter>, path: string): Promise<AdamWState> {
  const { metadata } = await readSafetensorsHeader(path);
  const tensors = await readSafetensors(path);
  const updates = Number(metadata.updates);
  if (!Number.isSafeInteger(updates) || updates < 0) {
    throw new CheckpointError(`${path}: must hold the number of updates, got ${metadata.updates}`);
  }
  const moments = new Map<string, { first: Float32Array; second: Float32Array }>();
  for (const [name, { data }] of trained) {
    const first = tensors.get(`first/${name}`)?.data;
    const second = tensors.get(`second/${name}`)?.data;
    if (first?.length !== data.length || second?.length !== data.length) {
      const got = `${first?.length ?? 'none'} and ${second?.length ?? 'none'}`;
      throw new CheckpointError(`${path}: must hold both moments of ${name} with ${data.length} values, got ${got}`);
    }
    moments.set(name, { first, second });
  }
  return { updates, moments };
}

async function handle(call: TrainerCall): Promise<unknown> {
  if (call.name === 'start') return start(call.request);
  const current = started();
  const { trainer } = current;
  const startedAt = performance.now();
  if (call.name !== 'score') reference = null;
  try {
    switch (call.name) {
      case 'forwardBackward': {
        const { data, loss, scale } = call.request;
        const result = await trainer.forwardBackward(data, loss, scale);
        trainedTokens += result.tokens;
        return result;
      }
      case 'optimStep':
        return { gradNorm: trainer.update(call.request), gradientSteps: trainer.optimizer.updates };
      case 'logprobs':
        return await trainer.logprobs(call.request.tokenIds, call.request.temperature);
      case 'score':
        return await trainer.score(call.request.data, await scoringWeights(current, call.request.source));
      case 'snapshot':
        return new Map(trainer.trained);
      case 'save':
        return await save(current, call.request.directory);
      case 'load':
        return await load(current, call.request.directory);
    }
  } finally {
    if (call.name === 'forwardBackward' || call.name === 'optimStep' || call.name === 'score') {
      trainingSeconds += (performance.now() - startedAt) / 1000;
    }
  }
}

/** Calls run one after the other, in the order they came. */
let queue: Promise<void> = Promise.resolve();

parentPort?.on('message', ({ id, call }: { id: number; call: TrainerCall }) => {
  queue = queue.then(async () => {
    let outcome: Outcome;
    try {
      outcome = { ok: true, value: await handle(call) };
    } catch (error) {
      outcome = { ok: false, error: toPlainError(error) };
    }
    const gradientSteps = state?.trainer.optimizer.updates ?? 0;
    const answer: TrainerAnswer = { id, outcome, counters: { trainedTokens, trainingSeconds, gradientSteps } };
    parentPort?.postMessage(answer);
  });
});
