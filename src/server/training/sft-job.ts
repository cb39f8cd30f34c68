/**
 * Supervised fine-tuning as a `PreparedJob`: the same adapter, optimizer state and step counter as training by reward. Layer 5.
 * Loss: mean cross-entropy over the learned tokens of an update. Order and rates depend on seed and position alone, so that a job cut
 * off between two checkpoints goes on exactly where it was.
 */
import { average } from '../../core/advantage.ts';
import { AbortedError } from '../../core/errors.ts';
import { createRng, shuffle } from '../../core/rng.ts';
import { decayingSchedule } from '../../core/schedule.ts';
import type { SftConfig } from '../../core/sft-config.ts';
import type { Datum, ForwardBackwardResult } from '../../engines/engine.ts';
import { type SftRequest, toPlainConversation, toSftConfig } from '../../wire/sft.ts';
import { maxDataPerCall } from './score-sequences.ts';
import { encodeConversation } from './sft-data.ts';
import type { Metrics } from './train-metrics.ts';
import {
  changedMetric,
  type JobEnvironment,
  type PartUpdates,
  type PreparedJob,
  type UpdateContext,
} from './training-job.ts';

/** Longest stretch of encoding in which the server answers nobody else, milliseconds. */
const encodeSliceMs = 10;

/** Conversations as training sequences, each fit for the model. */
export interface EncodedConversations {
  readonly examples: readonly (readonly Datum[])[];
  /** Longer than the model's context. */
  readonly dropped: number;
}

/** Encodes the conversations of an `sft` call, giving way to other requests. Throws DataError that names the conversation, before anything runs. */
export async function encodeConversations(
  request: SftRequest,
  { model, maxPositions }: Pick<JobEnvironment, 'model' | 'maxPositions'>,
): Promise<EncodedConversations> {
  const config = toSftConfig(request.options);
  const examples: (readonly Datum[])[] = [];
  let dropped = 0;
  let sliceEnd = performance.now() + encodeSliceMs;
  for (const [index, conversation] of request.conversations.entries()) {
    const data = encodeConversation(toPlainConversation(conversation), index, model, config, maxPositions);
    if (data === null) dropped += 1;
    else examples.push(data);
    if (performance.now() < sliceEnd) continue;
    await new Promise(setImmediate);
    sliceEnd = performance.now() + encodeSliceMs;
  }
  return { examples, dropped };
}

/** An `sft` call that may run. Without a conversation that fits it makes a step that changes nothing. */
export function prepareSft(
  request: SftRequest,
  { examples, dropped }: EncodedConversations,
  requestSha256: string,
  { maxPositions, onWarning }: Pick<JobEnvironment, 'maxPositions' | 'onWarning'>,
): PreparedJob {
  const config = toSftConfig(request.options);
  const updates = planUpdates(examples, config);
  const perPart = config.checkpointEvery ?? Math.max(1, updates.length);
  return {
    kind: 'sft',
    idempotencyKey: request.idempotency_key,
    requestSha256,
    config: { ...config, conversations: examples.length, dropped },
    parts: Math.max(1, Math.ceil(updates.length / perPart)),
    hasData: updates.length > 0,
    trajectories: null,
    update: async (context) => {
      const from = context.part * perPart;
      if (dropped > 0 && context.part === 0) {
        onWarning(
          `step ${context.nextStep}: ${dropped} of ${dropped + examples.length} conversations are dropped, ` +
            `because they are longer than the context of ${maxPositions} tokens` +
            (examples.length === 0 ? '; nothing is left, so the weights stay as they are' : ''),
        );
      }
      const part = await runPart(updates.slice(from, from + perPart), from, updates.length, config, context);
      const droppedMetric = context.part === 0 ? dropped : 0;
      return { ...part, metrics: { ...part.metrics, 'data/step_num_dropped_conversations': droppedMetric } };
    },
  };
}

/** The conversations of every update, as their sequences: each epoch in an order of its own. */
export function planUpdates(
  examples: readonly (readonly Datum[])[],
  { epochs, batchSize, seed }: SftConfig,
): (readonly Datum[])[][] {
  const updates: (readonly Datum[])[][] = [];
  for (let epoch = 0; epoch < epochs; epoch++) {
    const order = shuffle(examples, createRng(seed, 'sft-order', epoch));
    for (let from = 0; from < order.length; from += batchSize) updates.push(order.slice(from, from + batchSize));
  }
  return updates;
}

async function runPart(
  updates: readonly (readonly (readonly Datum[])[])[],
  from: number,
  total: number,
  config: SftConfig,
  context: UpdateContext,
): Promise<PartUpdates> {
  const { engine, signal, onProgress } = context;
  const startedAt = performance.now();
  const span = config.scheduleSpan ?? { done: 0, total };
  const warmupSteps = Math.floor(config.warmupRatio * span.total);
  const results: ForwardBackwardResult[] = [];
  const losses: number[] = [];
  const gradNorms: number[] = [];
  let learningRate = 0;
  let gradientSteps: number | null = null;
  for (const [offset, examples] of updates.entries()) {
    const done = from + offset;
    const data = examples.flat();
    const scale = 1 / data.reduce((sum, { actionMask }) => sum + count(actionMask), 0);
    let loss = 0;
    for (let start = 0; start < data.length; start += maxDataPerCall) {
      throwIfAborted(signal, done, total);
      const result = await engine.doForwardBackward({
        data: data.slice(start, start + maxDataPerCall),
        loss: { name: 'crossEntropy' },
        scale,
      });
      loss += result.loss;
      results.push(result);
    }
    throwIfAborted(signal, done, total);
    const schedule = { peak: config.learningRate, totalSteps: span.total, warmupSteps };
    learningRate = decayingSchedule(span.done + done, config.schedule, schedule);
    const update = await engine.doOptimStep({ learningRate, ...config.adam, maxGradNorm: config.maxGradNorm });
    losses.push(loss);
    gradNorms.push(update.gradNorm);
    gradientSteps = update.gradientSteps;
    onProgress({ stage: 'train', done: done + 1, total });
  }
  const trainedTokens = sum(results, ({ tokens }) => tokens);
  const metrics: Metrics = {
    ...describe(results, trainedTokens),
    [`sft/${changedMetric}`]: 0,
    ...(gradientSteps !== null && {
      'sft/loss': average(losses),
      'sft/loss_last_update': losses.at(-1)!,
      'sft/grad_norm': average(gradNorms),
      'sft/learning_rate': learningRate,
      'data/cum/num_gradient_steps': gradientSteps,
    }),
    'sft/updates': updates.length,
    'sft/conversations': updates.flat().length,
  };
  return { metrics, trainedTokens, seconds: (performance.now() - startedAt) / 1000 };
}

function describe(results: readonly ForwardBackwardResult[], tokens: number): Metrics {
  const padding = sum(results, ({ paddingTokens }) => paddingTokens);
  const actionTokens = sum(results, (result) => result.actionTokens);
  return {
    'sft/trained_tokens': actionTokens,
    'sft/tokens': tokens,
    'sft/packed_sequences': sum(results, ({ packedRows }) => packedRows),
    'sft/padding_ratio': tokens + padding === 0 ? 0 : padding / (tokens + padding),
    'sft/entropy': actionTokens === 0 ? 0 : sum(results, (one) => one.entropy * one.actionTokens) / actionTokens,
  };
}

function throwIfAborted(signal: AbortSignal, done: number, total: number): void {
  if (signal.aborted) {
    throw new AbortedError(`sft: stopped after ${done} of ${total} updates`, { cause: signal.reason });
  }
}

function count(mask: readonly number[]): number {
  return mask.reduce((total, one) => total + one, 0);
}

function sum(results: readonly ForwardBackwardResult[], value: (result: ForwardBackwardResult) => number): number {
  return results.reduce((total, result) => total + value(result), 0);
}
