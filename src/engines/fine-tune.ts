/**
 * Supervised fine-tuning of every parameter of a model directory, on chat conversations. Layer 4.
 * It makes a base model out of a model that knows nothing yet; policies are trained as adapters through `LocalBackend`.
 * Tokens stand as sampling will see them: prompts are rendered and encoded up to the assistant's turn, replies apart.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { AbortedError, ConfigError, DataError } from '../core/errors.ts';
import { createRng, shuffle } from '../core/rng.ts';
import { linearSchedule } from '../core/schedule.ts';
import type { ChatMessage } from '../core/trajectory.ts';
import { isPresent, writeFolderAtomic } from '../formats/atomic-files.ts';
import { type ChatTemplate, createChatTemplate } from '../formats/chat-template.ts';
import { openModel } from '../formats/model-source.ts';
import type { Tokenizer } from '../formats/tokenizer.ts';
import { createEmbeddedEngine } from './embedded/engine.ts';
import type { Datum, Engine } from './engine.ts';

export interface FineTuneOptions {
  /** Hugging Face model directory to start from. */
  readonly modelDirectory: string;
  /** Must not exist; appears whole at the end. */
  readonly outputDirectory: string;
  /** Each must hold at least one assistant message; one epoch over all of them. */
  readonly conversations: readonly (readonly ChatMessage[])[];
  /**
   * Weight in the loss of tokens that are not the assistant's; the assistant's, each with its end of turn, have weight 1. 0 = only the
   * assistant's are learned.
   */
  readonly promptWeight: number;
  /** Conversations of one optimizer update. */
  readonly batchSize: number;
  /** Peak of a linear schedule with warm-up, down to 0. */
  readonly learningRate: number;
  readonly warmupSteps: number;
  readonly weightDecay: number;
  /** Decides the order of the conversations. */
  readonly seed: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: FineTuneProgress) => void;
}

export interface FineTuneProgress {
  readonly step: number;
  readonly steps: number;
  /** Weighted mean cross-entropy of the batch, nats. */
  readonly loss: number;
  /** So far. */
  readonly tokens: number;
  readonly seconds: number;
}

export interface FineTuneResult {
  readonly parameters: number;
  readonly tokens: number;
  readonly seconds: number;
  readonly finalLoss: number;
  /** Highest resident memory of the engine's process, bytes. */
  readonly peakRssBytes: number;
}

const ADAM = { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, maxGradNorm: 1 } as const;

/**
 * Trains and writes `outputDirectory`. Throws AbortedError, with nothing written, when the signal fires; DataError if the folder exists or
 * a conversation does not fit, ConfigError on an option out of range, both before any training.
 */
export async function fineTuneModel(options: FineTuneOptions): Promise<FineTuneResult> {
  if (options.conversations.length === 0)
    throw new DataError('fineTuneModel: needs at least one conversation, got none');
  if (!Number.isSafeInteger(options.batchSize) || options.batchSize < 1) {
    throw new ConfigError(`fineTuneModel: batchSize must be a whole number ≥ 1, got ${options.batchSize}`);
  }
  if (!(options.promptWeight >= 0) || !Number.isFinite(options.promptWeight)) {
    throw new ConfigError(`fineTuneModel: promptWeight must be 0 or more, got ${options.promptWeight}`);
  }
  // Known only at the end otherwise, when all the work has been done.
  if (await isPresent(options.outputDirectory)) {
    throw new DataError(`fineTuneModel: outputDirectory must not exist yet, got ${options.outputDirectory}`);
  }
  const model = await openModel(options.modelDirectory);
  const tokenizer = await model.loadTokenizer();
  const template = createChatTemplate(tokenizer.config);
  const data = options.conversations.map((messages, index) =>
    encodeConversation(messages, index, tokenizer, template, options.promptWeight),
  );
  const engine = await createEmbeddedEngine({
    modelDirectory: options.modelDirectory,
    training: { kind: 'full' },
    seed: options.seed,
  });
  try {
    const { maxPositions } = await engine.doInfo();
    const long = data.findIndex(({ tokenIds }) => tokenIds.length > maxPositions);
    if (long >= 0) {
      const got = data[long]!.tokenIds.length;
      throw new DataError(`conversation ${long}: must have at most ${maxPositions} tokens, got ${got}`);
    }
    const trained = await runEpoch(engine, data, options);
    throwIfAborted(options.signal, 'before the model was written');
    const { parameters, peakRssBytes } = await engine.doInfo();
    await writeFolderAtomic(options.outputDirectory, async (folder) => {
      await engine.doSave({ directory: folder });
      await rm(join(folder, 'optimizer.safetensors')); // a finished model, not a run to resume
      await model.writeTextFiles(folder);
    });
    return { ...trained, parameters, peakRssBytes };
  } finally {
    await engine.close();
  }
}

async function runEpoch(
  engine: Engine,
  data: readonly Datum[],
  options: FineTuneOptions,
): Promise<{ tokens: number; seconds: number; finalLoss: number }> {
  const startedAt = performance.now();
  const order = shuffle(data, createRng(options.seed, 'fine-tune'));
  const steps = Math.ceil(order.length / options.batchSize);
  const result = { tokens: 0, seconds: 0, finalLoss: 0 };
  for (let step = 0; step < steps; step++) {
    throwIfAborted(options.signal, `before update ${step + 1} of ${steps}`);
    const batch = order.slice(step * options.batchSize, (step + 1) * options.batchSize);
    const weight = batch.reduce(
      (sum, { tokenWeights = [] }) => sum + tokenWeights.reduce((total, one) => total + one, 0),
      0,
    );
    const { loss, tokens } = await engine.doForwardBackward({
      data: batch,
      loss: { name: 'crossEntropy' },
      scale: 1 / weight,
    });
    const schedule = { peak: options.learningRate, totalSteps: steps, warmupSteps: options.warmupSteps };
    const learningRate = linearSchedule(step, schedule);
    await engine.doOptimStep({ ...ADAM, learningRate, weightDecay: options.weightDecay });
    result.tokens += tokens;
    result.seconds = (performance.now() - startedAt) / 1000;
    result.finalLoss = loss;
    options.onProgress?.({ step: step + 1, steps, loss, tokens: result.tokens, seconds: result.seconds });
  }
  return result;
}

/** Token ids of a conversation and their weights in the loss. `index` names it in errors. Throws DataError, ConfigError. */
export function encodeConversation(
  messages: readonly ChatMessage[],
  index: number,
  tokenizer: Tokenizer,
  template: ChatTemplate,
  promptWeight: number,
): Datum {
  const tokenIds: number[] = [];
  const tokenWeights: number[] = [];
  const append = (ids: readonly number[], weight: number): void => {
    for (const id of ids) {
      tokenIds.push(id);
      tokenWeights.push(weight);
    }
  };
  const { eosId } = tokenizer;
  if (eosId === null) throw new ConfigError('fineTuneModel: the tokenizer must name an eos_token, got none');
  let previousEnd = 0;
  for (const [position, message] of messages.entries()) {
    if (message.role !== 'assistant') continue;
    const soFar = messages.slice(0, position);
    const prompt =
      previousEnd === 0
        ? template.render({ messages: soFar, addGenerationPrompt: true })
        : template.renderSuffix(messages.slice(0, previousEnd), soFar);
    if (prompt === null || typeof message.content !== 'string') {
      throw new DataError(
        `conversation ${index}: the template must only append to what stands before, and replies must be text, got message ${position}`,
      );
    }
    append(tokenizer.encode(prompt, { afterId: previousEnd === 0 ? undefined : eosId }), promptWeight);
    append([...tokenizer.encode(message.content), eosId], 1);
    previousEnd = position + 1;
  }
  if (previousEnd === 0) throw new DataError(`conversation ${index}: must hold an assistant message, got none`);
  tokenWeights[0] = 0; // nothing predicts the first token
  const actionMask = tokenWeights.map((weight) => Number(weight > 0));
  const zeros = tokenIds.map(() => 0);
  return {
    tokenIds,
    actionMask,
    samplingLogprobs: zeros,
    advantages: zeros,
    temperatures: tokenIds.map(() => 1),
    tokenWeights,
  };
}

function throwIfAborted(signal: AbortSignal | undefined, when: string): void {
  if (signal?.aborted) throw new AbortedError(`fineTuneModel: stopped ${when}`, { cause: signal.reason });
}
