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
import { encodeConversation } from './sft-data.ts';
import type { Metrics } from './train-metrics.ts';
import {
  changedMetric,
  type JobEnvironment,
  type PartUpdates,
  type PreparedJob,
  type UpdateContext,
} from './training-job.ts';

/** Data of one engine call: bounds messages between processes and the time between two progress reports. */
const maxDataPerCall = 64;

/** Checks an `sft` call and encodes its conversations. Throws DataError that names the conversation, before anything runs. */
export function prepareSft(request: SftRequest, requestSha256: string, environment: JobEnvironment): PreparedJob {
  const { model, maxPositions } = environment;
  const config = toSftConfig(request.options);
  const examples = request.conversations.map((conversation, index) =>
    encodeConversation(toPlainConversation(conversation), index, model, config, maxPositions),
  );
  const updates = planUpdates(examples, config);
  const perPart = config.checkpointEvery ?? updates.length;
  return {
    kind: 'sft',
    idempotencyKey: request.idempotency_key,
    requestSha256,
    config: { ...config, conversations: examples.length },
    parts: Math.ceil(updates.length / perPart),
    hasData: true,
    trajectories: null,
    update: (context) => {
      const from = context.part * perPart;
      return runPart(updates.slice(from, from + perPart), from, updates.length, config, context);
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
  const warmupSteps = Math.floor(config.warmupRatio * total);
  const results: ForwardBackwardResult[] = [];
  const losses: number[] = [];
  const gradNorms: number[] = [];
  let learningRate = 0;
  let gradientSteps = 0;
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
    learningRate = decayingSchedule(done, config.schedule, {
      peak: config.learningRate,
      totalSteps: total,
      warmupSteps,
    });
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
    'sft/loss': average(losses),
    'sft/loss_last_update': losses.at(-1) ?? 0,
    'sft/grad_norm': average(gradNorms),
    'sft/learning_rate': learningRate,
    'sft/updates': updates.length,
    'sft/conversations': updates.flat().length,
    'data/cum/num_gradient_steps': gradientSteps,
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
