/**
 * `/metrics` in Prometheus' text format. Layer 5. Durations are seconds; what an engine counts is asked of it at each scrape.
 * Labels are routes, models, statuses and reasons, never what a client made up: their number stays bounded.
 */
import type { Context, Hono } from 'hono';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { type ModelLookup, modelState, parseModelName, readEngineInfo } from '../inference/model-lookup.ts';
import type { ServedModel } from '../inference/served-model.ts';
import type { WatchGeneration } from './generation-watch.ts';

/** From an answer out of a script to a whole context on a slow machine. */
const durationBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];

export interface ServerMetrics {
  readonly observeRequest: (method: string, route: string, status: number, seconds: number) => void;
  readonly watchGeneration: WatchGeneration;
  readonly text: () => Promise<string>;
  readonly contentType: string;
}

/** Metrics of one server; several in a process do not mix, but for those of the process itself. */
export function createServerMetrics(lookup: ModelLookup): ServerMetrics {
  const register = new Registry();
  const requests = new Histogram({
    name: 'art_http_request_duration_seconds',
    help: 'From the arrival of a request to the end of its answer, streams included.',
    labelNames: ['method', 'route', 'status'],
    buckets: durationBuckets,
    registers: [register],
  });
  let isProcessWatched = false;
  const watchGeneration = createGenerationMetrics(register, lookup);
  addModelMetrics(register, lookup);
  return {
    observeRequest: (method, route, status, seconds) => requests.observe({ method, route, status }, seconds),
    watchGeneration,
    text: () => {
      // Watching event loop and collector costs a little, so it begins with the first scrape.
      if (!isProcessWatched) collectDefaultMetrics({ register });
      isProcessWatched = true;
      return register.metrics();
    },
    contentType: register.contentType,
  };
}

export function registerMetricsRoute(app: Hono, metrics: ServerMetrics): void {
  app.get('/metrics', async (c: Context) => c.body(await metrics.text(), 200, { 'content-type': metrics.contentType }));
}

function createGenerationMetrics(register: Registry, lookup: ModelLookup): WatchGeneration {
  const registers = [register];
  const shared = { labelNames: ['model'], registers } as const;
  const durations = new Histogram({
    name: 'art_generation_duration_seconds',
    help: 'From the request to the end of its last choice.',
    labelNames: ['model', 'outcome'],
    buckets: durationBuckets,
    registers,
  });
  const firstTokens = new Histogram({
    ...shared,
    name: 'art_time_to_first_token_seconds',
    help: 'Of streamed requests: from the request to its first token.',
    buckets: durationBuckets,
  });
  const counter = (name: string, help: string): Counter<'model'> => new Counter({ ...shared, name, help });
  const promptTokens = counter('art_prompt_tokens_total', 'Tokens of prompts; choices of one request share theirs.');
  const cachedTokens = counter('art_cached_prompt_tokens_total', 'Prompt tokens that were found in the KV cache.');
  const completionTokens = counter('art_completion_tokens_total', 'Tokens of answers that were sampled to their end.');
  const finishes = new Counter({
    name: 'art_finished_choices_total',
    help: 'Choices by the reason that ended them.',
    labelNames: ['model', 'reason'],
    registers,
  });
  return (request) => {
    const { name } = parseModelName(request.model);
    const model = lookup.findModel(name) === undefined ? 'unknown' : name;
    const startedAt = performance.now();
    const seconds = (): number => (performance.now() - startedAt) / 1000;
    return {
      started: () => firstTokens.observe({ model }, seconds()),
      ended: (usage, choices) => {
        durations.observe({ model, outcome: 'ok' }, seconds());
        promptTokens.inc({ model }, usage.promptTokens);
        cachedTokens.inc({ model }, usage.cachedTokens);
        completionTokens.inc({ model }, usage.completionTokens);
        for (const choice of choices) finishes.inc({ model, reason: choice.finishReason });
      },
      failed: () => durations.observe({ model, outcome: 'failed' }, seconds()),
    };
  };
}

/** What one scrape knows of a model. */
interface ModelReading {
  readonly model: ServedModel;
  /** Null while the engine does not answer. */
  readonly info: Awaited<ReturnType<typeof readEngineInfo>> | null;
}

function addModelMetrics(register: Registry, lookup: ModelLookup): void {
  const read = (): Promise<ModelReading[]> =>
    Promise.all(
      [...lookup.models()].map(async (model) => ({ model, info: await readEngineInfo(model).catch(() => null) })),
    );
  // All gauges of a scrape are of one reading; collecting them asks for it at the same time.
  let reading: Promise<ModelReading[]> | null = null;
  const readOnce = (): Promise<ModelReading[]> => {
    reading ??= read().finally(() => {
      reading = null;
    });
    return reading;
  };
  const gauge = (name: string, help: string, valueIn: (reading: ModelReading) => number | undefined): void => {
    new Gauge({
      name,
      help,
      labelNames: ['model'],
      registers: [register],
      async collect() {
        this.reset();
        for (const one of await readOnce()) {
          const value = valueIn(one);
          if (value !== undefined) this.set({ model: one.model.name }, value);
        }
      },
    });
  };
  gauge('art_policy_step', 'Newest policy step.', ({ model }) => model.step());
  gauge('art_engine_up', '1 while the engine answers.', ({ info }) => (info === null ? 0 : 1));
  gauge('art_running_sequences', 'Sequences that are being sampled.', ({ info }) => info?.runningSequences);
  gauge('art_waiting_sequences', 'Sequences that wait for room.', ({ info }) => info?.waitingSequences);
  gauge('art_engine_rss_bytes', "Memory of the engine's process.", ({ info }) => info?.rssBytes);
  gauge('art_sampled_tokens', 'Tokens sampled since the engine started.', ({ info }) => info?.sampledTokens);
  gauge(
    'art_prefilled_tokens',
    'Prompt tokens computed since the engine started.',
    ({ info }) => info?.prefilledTokens,
  );
  gauge('art_trained_tokens', 'Tokens trained on since the engine started.', ({ info }) => info?.trainedTokens);
  gauge(
    'art_malformed_tool_calls',
    'Tool calls that could not be read and were answered as text.',
    ({ model }) => modelState(model).malformedToolCalls,
  );
  gauge('art_choices_in_flight', 'Choices between request and answer.', ({ model }) => modelState(model).inFlight);
  addPromptMetric(register, lookup);
}

/** `origin="rerendered"` counts turns whose prompt is not token-exact. */
function addPromptMetric(register: Registry, lookup: ModelLookup): void {
  new Gauge({
    name: 'art_conversation_prompts',
    help: 'Prompts of conversations: started, continued from sampled tokens, or encoded again from text (rerendered).',
    labelNames: ['model', 'origin'],
    registers: [register],
    collect() {
      this.reset();
      for (const model of lookup.models()) {
        const { counters } = modelState(model).conversations;
        for (const [origin, count] of Object.entries(counters)) this.set({ model: model.name, origin }, count);
      }
    },
  });
}
