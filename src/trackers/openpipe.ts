/**
 * OpenPipe: each sampled turn as a reported chat completion, with its reward as a tag. Layer 6.
 * Source: what OpenPipe's Python client 5.0.0 sends, recorded in test/fixtures/trackers/openpipe.json. It has no metrics of runs.
 */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Tracker, TrackerRun, TrackerSink, TrackerTrajectories } from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { createTrackerHttp, readKey, type TrackerHttp } from './http.ts';
import { type RunNames, type TracedTrajectory, type TracedTurn, traceTrajectories } from './traces.ts';

export interface OpenPipeTrackerOptions extends TrackerOptions {
  /** Default: OPENPIPE_API_KEY of the environment. */
  readonly apiKey?: string;
  /** Default: OPENPIPE_BASE_URL, else https://api.openpipe.ai/api/v1. */
  readonly baseURL?: string;
  /** A report is nothing but texts: they must be asked for. */
  readonly texts: true;
}

/**
 * Reports each sampled turn with tags for project, name, step, split, reward and metrics. Rows of metrics are not sent: OpenPipe has no place for them.
 * A report whose answer was lost may stand there twice: OpenPipe gives reports no ids.
 */
export function openPipeTracker(options: OpenPipeTrackerOptions): Tracker {
  refuseUnknownKeys('openPipeTracker', options, [...TRACKER_OPTION_NAMES, 'apiKey', 'baseURL', 'texts']);
  const { apiKey, baseURL, texts, ...limits } = options;
  if (texts !== true)
    throw new ConfigError('openPipeTracker: its reports are texts of conversations; pass texts: true');
  return createTracker(new OpenPipeSink(apiKey, baseURL), { ...limits, trajectories: 'texts' });
}

class OpenPipeSink implements TrackerSink {
  readonly name = 'openpipe';
  readonly #http: TrackerHttp;
  /** Reports that were taken, of batches that are under way: a batch that is tried again goes on where it stopped. */
  readonly #taken = new WeakMap<TrackerTrajectories, number>();
  #run: RunNames = { project: '', name: '' };

  constructor(apiKey: string | undefined, baseURL: string | undefined) {
    const key = readKey('openPipeTracker', apiKey, 'apiKey', 'OPENPIPE_API_KEY');
    this.#http = createTrackerHttp({
      what: 'tracker openpipe',
      baseURL: baseURL ?? process.env.OPENPIPE_BASE_URL ?? 'https://api.openpipe.ai/api/v1',
      headers: { authorization: `Bearer ${key}` },
      secrets: [key],
    });
  }

  async start(run: TrackerRun): Promise<void> {
    this.#run = run;
  }

  async logMetrics(): Promise<void> {}

  async logTrajectories(batch: TrackerTrajectories, signal: AbortSignal, onProgress: () => void): Promise<void> {
    const traced = traceTrajectories(this.#run, batch);
    const reports = traced.flatMap((item) => item.turns.map((turn) => toReport(item, turn)));
    for (let next = this.#taken.get(batch) ?? 0; next < reports.length; next++) {
      await this.#http.send({ path: '/report', body: reports[next] }, signal);
      this.#taken.set(batch, next + 1);
      onProgress();
    }
  }
}

function toReport({ startMs, endMs, facts, scores }: TracedTrajectory, turn: TracedTurn): object {
  const { model, before, output, tools, id } = turn;
  const tags = Object.entries({ ...facts, ...scores }).map(([name, value]) => [name, String(value)]);
  return {
    requestedAt: Math.round(startMs),
    receivedAt: Math.round(endMs),
    reqPayload: { model, messages: before, ...(tools !== null && { tools }) },
    respPayload: {
      id,
      object: 'chat.completion',
      created: Math.floor(endMs / 1000),
      model,
      choices: [{ index: 0, finish_reason: 'tool_calls' in output ? 'tool_calls' : 'stop', message: output }],
    },
    statusCode: 200,
    tags: Object.fromEntries(tags),
  };
}
