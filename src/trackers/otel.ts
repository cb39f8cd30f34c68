/**
 * OpenTelemetry: metrics as gauges, trajectories as spans with their rewards as evaluations, by its own exporters, which are loaded when the first row is
 * sent. Layer 6. Source: OpenTelemetry's conventions for generative AI (`invoke_agent`, `chat`, `gen_ai.evaluation.result`), still in development.
 */
import { ApiError, ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Tracker, TrackerRow, TrackerRun, TrackerSink, TrackerTrajectories } from '../sdk/tracker.ts';
import { createTracker, TRACKER_OPTION_NAMES, type TrackerOptions } from '../sdk/tracker-queue.ts';
import { checkURL } from './http.ts';
import { toSpans, toTime } from './otel-spans.ts';
import { type RunNames, traceTrajectories } from './traces.ts';

export interface OtelTrackerOptions extends TrackerOptions {
  /** Root of an OTLP/HTTP receiver, as in `http://127.0.0.1:4318`; default: OTEL_EXPORTER_OTLP_ENDPOINT and its like, as the exporters read them. */
  readonly endpoint?: string;
  /** Added to every request; default: OTEL_EXPORTER_OTLP_HEADERS. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Also messages, tools, metadata and logs. Default false: rewards, metrics and counts. */
  readonly texts?: boolean;
}

/**
 * Sends each metric as a gauge of its own name, with the attributes `art.project`, `art.name` and `art.split` and the policy step as the gauge
 * `training_step`, and each trajectory as a span `invoke_agent` with an event `gen_ai.evaluation.result` for its reward and each of its metrics.
 * Values that are not finite are left out, because OTLP's JSON has none; one warning names the first. Needs the packages
 * `@opentelemetry/exporter-metrics-otlp-http`, `@opentelemetry/sdk-metrics` and `@opentelemetry/exporter-trace-otlp-http`.
 */
export function otelTracker(options: OtelTrackerOptions = {}): Tracker {
  refuseUnknownKeys('otelTracker', options, [...TRACKER_OPTION_NAMES, 'endpoint', 'headers', 'texts']);
  const { endpoint, headers, texts = false, ...limits } = options;
  if (endpoint !== undefined) checkURL('otelTracker', endpoint);
  else if (!hasEndpoint())
    throw new ConfigError('otelTracker: needs endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT in the environment');
  const sink = new OtelSink(endpoint?.replace(/\/+$/, ''), headers ?? {}, limits.timeoutMs ?? 10_000, limits.onWarning);
  return createTracker(sink, { ...limits, trajectories: texts ? 'texts' : 'numbers' });
}

function hasEndpoint(): boolean {
  return ['', 'METRICS_', 'TRACES_'].some((kind) => process.env[`OTEL_EXPORTER_OTLP_${kind}ENDPOINT`]);
}

const SCOPE = { name: 'agent-reinforcement-trainer' };

interface ExportResult {
  readonly code: number;
  readonly error?: Error;
}

/** What both exporters have. */
interface Exporter<T> {
  export(batch: T, done: (result: ExportResult) => void): void;
  shutdown(): Promise<void>;
}

type Metrics = typeof import('@opentelemetry/sdk-metrics');
type ResourceMetrics = import('@opentelemetry/sdk-metrics').ResourceMetrics;
type Spans = Parameters<
  InstanceType<typeof import('@opentelemetry/exporter-trace-otlp-http').OTLPTraceExporter>['export']
>[0];

interface Exporters {
  readonly library: Metrics;
  readonly metrics: Exporter<ResourceMetrics>;
  readonly spans: Exporter<Spans>;
}

class OtelSink implements TrackerSink {
  readonly name = 'otel';
  readonly #endpoint: string | undefined;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeoutMs: number;
  readonly #onWarning: (message: string) => void;
  #hasWarned = false;
  #run: RunNames = { project: '', name: '' };
  #exporters: Exporters | undefined;

  constructor(
    endpoint: string | undefined,
    headers: Readonly<Record<string, string>>,
    timeoutMs: number,
    onWarning: (message: string) => void = (message) => console.warn(message),
  ) {
    this.#endpoint = endpoint;
    this.#headers = headers;
    this.#timeoutMs = timeoutMs;
    this.#onWarning = onWarning;
  }

  async start(run: TrackerRun): Promise<void> {
    this.#run = run;
    this.#exporters ??= await this.#load();
  }

  async logMetrics(rows: readonly TrackerRow[]): Promise<void> {
    const { library, metrics: exporter } = this.#exporters!;
    const points = new Map<string, { attributes: Record<string, string>; time: [number, number]; value: number }[]>();
    for (const { step, split, recordedAt, metrics } of rows) {
      const attributes = { 'art.project': this.#run.project, 'art.name': this.#run.name, 'art.split': split };
      for (const [name, value] of Object.entries({ ...metrics, training_step: step })) {
        if (!Number.isFinite(value)) this.#warnOf(name, value);
        else points.set(name, [...(points.get(name) ?? []), { attributes, time: toTime(recordedAt.getTime()), value }]);
      }
    }
    const gauge: import('@opentelemetry/sdk-metrics').DataPointType.GAUGE = library.DataPointType.GAUGE;
    const metrics = [...points].map(([name, list]) => ({
      descriptor: { name, description: '', unit: '', valueType: 1 }, // ValueType.DOUBLE
      dataPointType: gauge,
      aggregationTemporality: library.AggregationTemporality.CUMULATIVE,
      dataPoints: list.map(({ attributes, time, value }) => ({ attributes, startTime: time, endTime: time, value })),
    }));
    await send('metrics', exporter, { resource: this.#resource(), scopeMetrics: [{ scope: SCOPE, metrics }] });
  }

  async logTrajectories(batch: TrackerTrajectories): Promise<void> {
    const spans = traceTrajectories(this.#run, batch).flatMap((traced) =>
      toSpans(traced).map((span) => ({ ...span, resource: this.#resource(), instrumentationScope: SCOPE })),
    );
    await send('traces', this.#exporters!.spans, spans);
  }

  async close(): Promise<void> {
    const exporters = this.#exporters;
    this.#exporters = undefined;
    await exporters?.metrics.shutdown();
    await exporters?.spans.shutdown();
  }

  async #load(): Promise<Exporters> {
    const [library, { OTLPMetricExporter }, { OTLPTraceExporter }] = await Promise.all([
      import('@opentelemetry/sdk-metrics'),
      import('@opentelemetry/exporter-metrics-otlp-http'),
      import('@opentelemetry/exporter-trace-otlp-http'),
    ]).catch((cause: unknown) => {
      const packages =
        '@opentelemetry/sdk-metrics @opentelemetry/exporter-metrics-otlp-http @opentelemetry/exporter-trace-otlp-http';
      throw new ConfigError(`tracker otel: its packages must be there; npm install ${packages}`, { cause });
    });
    const options = (path: string): object => ({
      headers: this.#headers,
      timeoutMillis: this.#timeoutMs,
      ...(this.#endpoint !== undefined && { url: `${this.#endpoint}/v1/${path}` }),
    });
    return {
      library,
      metrics: new OTLPMetricExporter(options('metrics')),
      spans: new OTLPTraceExporter(options('traces')),
    };
  }

  #resource(): ResourceMetrics['resource'] {
    const attributes = { 'service.name': 'agent-reinforcement-trainer' };
    const resource = { attributes, getRawAttributes: () => Object.entries(attributes), merge: () => resource };
    return resource as ResourceMetrics['resource'];
  }

  #warnOf(name: string, value: number): void {
    if (this.#hasWarned) return;
    this.#hasWarned = true;
    this.#onWarning(`tracker otel: ${name} = ${value} is left out: OTLP's JSON has only finite values`);
  }
}

function send<T>(what: string, exporter: Exporter<T>, batch: T): Promise<void> {
  return new Promise((resolve, reject) => {
    exporter.export(batch, ({ code, error }) => {
      if (code === 0) resolve();
      else reject(new ApiError(`tracker otel: ${what}: ${error?.message ?? 'could not be exported'}`, statusOf(error)));
    });
  });
}

/** The exporters' errors have the status of the answer as their code; others have none. */
function statusOf(error: unknown): number {
  const code: unknown = typeof error === 'object' && error !== null ? Reflect.get(error, 'code') : undefined;
  return typeof code === 'number' ? code : 0;
}
