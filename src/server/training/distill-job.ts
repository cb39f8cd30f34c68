/**
 * On-policy distillation as a `PreparedJob`: the teacher scores what the policy sampled, then the policy moves towards it; the same adapter,
 * optimizer state and step counter as training by reward. Layer 5. Rewards are not read. Source of reverseKl: Thinking Machines,
 * "On-Policy Distillation" (2025): advantage = ln teacher − ln sampled, importance-sampled, no discount.
 */
import { average } from '../../core/advantage.ts';
import type { DistillConfig } from '../../core/distill-config.ts';
import { AbortedError, DataError } from '../../core/errors.ts';
import { createRng, shuffle } from '../../core/rng.ts';
import type { Datum, ForwardBackwardResult, LossConfig } from '../../engines/engine.ts';
import { type DistillRequest, toDistillConfig } from '../../wire/distill.ts';
import { resolveGroups } from '../rollouts/rollout-histories.ts';
import { formatTrajectories } from '../store/trajectory-files.ts';
import { scoreByTeacher, type Teacher, type TeacherScores } from './distill-teacher.ts';
import { resolveTurns } from './resolve-turns.ts';
import { maxDataPerCall } from './score-sequences.ts';
import { buildSequences, type TrainingSequence } from './sequences.ts';
import { type Metrics, trajectoryMetrics } from './train-metrics.ts';
import {
  changedMetric,
  type JobEnvironment,
  type PartUpdates,
  type PreparedJob,
  type UpdateContext,
} from './training-job.ts';

/** Checks a `distill` call. Throws DataError that names the group, before anything runs. */
export function prepareDistillation(
  request: DistillRequest,
  requestSha256: string,
  teacher: Teacher,
  { model, maxPositions, storage, onWarning }: JobEnvironment,
): PreparedJob {
  const config = toDistillConfig(request.options);
  const { groups } = resolveGroups(request, model.completions.rollouts);
  const trajectories = resolveTurns(groups, model.completions).flat();
  const known = new Set(trajectories.flatMap(({ histories }) => histories.flat()));
  const all = trajectories.flatMap(({ histories }) => {
    const turns = histories.flatMap((records) => {
      const fresh = records.filter((record) => known.delete(record)); // each turn once
      return fresh.map((record, k) => ({ record, advantage: 0, isFirst: k === 0 }));
    });
    return buildSequences(turns).sequences;
  });
  const fitting = all.filter(({ datum }) => datum.tokenIds.length <= maxPositions);
  const metrics = trajectoryMetrics('distill', groups);
  return {
    kind: 'distill',
    idempotencyKey: request.idempotency_key,
    requestSha256,
    config: { ...config, teacher: { ...request.teacher } },
    parts: 1,
    hasData: fitting.length > 0,
    trajectories: formatTrajectories(groups, model, storage),
    update: async (context) => {
      const { scored, dropped } = await scoreAll(teacher, fitting, config, context);
      const lost = all.length - fitting.length + dropped;
      if (lost > 0) {
        onWarning(
          `step ${context.nextStep}: ${lost} of ${all.length} sequences are dropped, because they are longer than the context of the model ` +
            'or, with its system message, of the teacher',
        );
      }
      const updates = await runUpdates(scored, config, context);
      const counts: Metrics = {
        [`distill/${changedMetric}`]: 0,
        'data/step_num_trajectories': trajectories.length,
        'data/step_num_dropped_sequences': lost,
        'data/step_num_datums': scored.length,
      };
      return { ...updates, metrics: { ...metrics, ...counts, ...updates.metrics } };
    },
  };
}

interface ScoredSequence {
  readonly datum: Datum;
  readonly scores: TeacherScores;
}

async function scoreAll(
  teacher: Teacher,
  sequences: readonly TrainingSequence[],
  config: DistillConfig,
  { step, signal, onProgress }: UpdateContext,
): Promise<{ readonly scored: readonly ScoredSequence[]; readonly dropped: number }> {
  const future = sequences.flatMap(({ samplingSteps }) => samplingSteps).find((sampled) => sampled > step);
  if (future !== undefined) {
    throw new DataError(
      `distill: turns must come from policy steps up to ${step}, got one of step ${future}; roll out again`,
    );
  }
  const total = sequences.length;
  const topK = config.loss === 'reverseKl' ? 1 : config.topK;
  const found = await scoreByTeacher(
    teacher,
    sequences.map(({ datum }) => datum),
    topK,
    { signal, onScored: (done) => onProgress({ stage: 'score', done, total }) },
  ).catch((error: unknown) => {
    throw signal.aborted ? new AbortedError('distill: stopped while the teacher scored', { cause: error }) : error;
  });
  const scored = sequences.flatMap(({ datum }, i) => {
    const scores = found[i];
    return scores == null ? [] : [{ datum: withTeacher(datum, scores, config), scores }];
  });
  return { scored, dropped: total - scored.length };
}

function withTeacher(datum: Datum, scores: TeacherScores, { loss }: DistillConfig): Datum {
  if (loss !== 'reverseKl') return { ...datum, teacher: { tokenIds: scores.topIds, logprobs: scores.topLogprobs } };
  const gap = (t: number): number => scores.logprobs[t]! - datum.samplingLogprobs[t]!;
  return { ...datum, advantages: datum.actionMask.map((mask, t) => (mask === 1 ? gap(t) : 0)) };
}

const lossOf: { readonly [K in DistillConfig['loss']]: LossConfig } = {
  reverseKl: { name: 'importanceSampling' },
  forwardKlTopK: { name: 'forwardKlTopK' },
  reverseKlTopK: { name: 'reverseKlTopK' },
};

/** Per epoch one update for each of `gradientSteps` parts, in an order that seed and step decide. */
async function runUpdates(
  sequences: readonly ScoredSequence[],
  config: DistillConfig,
  { engine, step, signal, onProgress }: UpdateContext,
): Promise<PartUpdates> {
  const startedAt = performance.now();
  const parts = Array.from({ length: config.epochs }, (_, epoch) => planEpoch(sequences, config, step, epoch)).flat();
  const perEpoch = parts.length / config.epochs;
  const results: ForwardBackwardResult[] = [];
  const [losses, gradNorms]: [number[], number[]] = [[], []];
  const gaps = { studentMinusTeacher: 0, tokens: 0 };
  let gradientSteps: number | null = null;
  for (const [index, part] of parts.entries()) {
    const scale = config.coefficient / countActions(part);
    let loss = 0;
    for (let from = 0; from < part.length; from += maxDataPerCall) {
      throwIfAborted(signal, index, parts.length);
      const some = part.slice(from, from + maxDataPerCall);
      const result = await engine.doForwardBackward({
        data: some.map(({ datum }) => datum),
        loss: lossOf[config.loss],
        scale,
      });
      if (index < perEpoch) addGaps(gaps, some, result);
      loss += result.loss;
      results.push(result);
    }
    throwIfAborted(signal, index, parts.length);
    const { learningRate, adam, maxGradNorm } = config;
    const update = await engine.doOptimStep({ learningRate, ...adam, maxGradNorm });
    losses.push(loss);
    gradNorms.push(update.gradNorm);
    gradientSteps = update.gradientSteps;
    onProgress({ stage: 'train', done: index + 1, total: parts.length });
  }
  const trainedTokens = results.reduce((sum, { tokens }) => sum + tokens, 0);
  const seconds = (performance.now() - startedAt) / 1000;
  if (gradientSteps === null) return { metrics: {}, trainedTokens, seconds };
  const metrics: Metrics = {
    'loss/distillation': average(losses),
    'loss/grad_norm': average(gradNorms),
    'loss/learning_rate': config.learningRate,
    'data/step_trainer_tokens': trainedTokens,
    'data/cum/num_gradient_steps': gradientSteps,
    'distill/kl_reverse': gaps.studentMinusTeacher / gaps.tokens,
    ...describeScores(sequences, config),
    ...exactDistance(losses.slice(0, perEpoch), config),
  };
  return { metrics, trainedTokens, seconds };
}

/** Of the first pass, whose loss is the distance itself. */
function exactDistance(losses: readonly number[], { loss, coefficient }: DistillConfig): Metrics {
  if (loss === 'reverseKl') return {};
  return { [loss === 'forwardKlTopK' ? 'distill/kl_forward' : 'distill/kl_reverse']: average(losses) / coefficient };
}

function planEpoch(
  sequences: readonly ScoredSequence[],
  { gradientSteps, seed }: DistillConfig,
  step: number,
  epoch: number,
): ScoredSequence[][] {
  const order = shuffle(sequences, createRng(seed, 'distill-order', step, epoch));
  const parts = Math.min(gradientSteps, order.length);
  return Array.from({ length: parts }, (_, part) =>
    order.slice(Math.floor((part * order.length) / parts), Math.floor(((part + 1) * order.length) / parts)),
  );
}

function addGaps(
  gaps: { studentMinusTeacher: number; tokens: number },
  sequences: readonly ScoredSequence[],
  { trainingLogprobs }: ForwardBackwardResult,
): void {
  for (const [i, { datum, scores }] of sequences.entries()) {
    for (const [t, mask] of datum.actionMask.entries()) {
      if (mask !== 1) continue;
      gaps.studentMinusTeacher += trainingLogprobs[i]![t]! - scores.logprobs[t]!;
      gaps.tokens += 1;
    }
  }
}

/** How often the policy drew the teacher's best token, and how much of the teacher's distribution the compared tokens are. */
function describeScores(sequences: readonly ScoredSequence[], { loss }: DistillConfig): Metrics {
  let [tokens, agreeing, covered] = [0, 0, 0];
  for (const { datum, scores } of sequences) {
    for (const [t, mask] of datum.actionMask.entries()) {
      if (mask !== 1) continue;
      tokens += 1;
      if (scores.topIds[t]![0] === datum.tokenIds[t]) agreeing += 1;
      covered += scores.topLogprobs[t]!.reduce((sum, logprob) => sum + Math.exp(logprob), 0);
    }
  }
  return {
    'distill/tokens': tokens,
    'distill/agreement': agreeing / tokens,
    ...(loss !== 'reverseKl' && { 'distill/coverage': covered / tokens }),
  };
}

function countActions(sequences: readonly ScoredSequence[]): number {
  return sequences.reduce((sum, { datum }) => sum + datum.actionMask.reduce((total, mask) => total + mask, 0), 0);
}

function throwIfAborted(signal: AbortSignal, done: number, total: number): void {
  if (!signal.aborted) return;
  throw new AbortedError(`distill: stopped after ${done} of ${total} updates`, { cause: signal.reason });
}
