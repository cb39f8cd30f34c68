/** What `art serve` tells of itself: a structured log on standard error, and spans where an exporter is configured. Layer 6. */
import { type Logger, pino } from 'pino';
import { ConfigError, messageOf } from '../core/errors.ts';

export const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;
export type LogLevel = (typeof logLevels)[number];

/** JSON lines; `info` has one for each request. `redact` gets every line as a value and returns what may be written. */
export function createLogger(
  level: LogLevel,
  redact: (line: unknown) => unknown = (line) => line,
  sink: { readonly write: (line: string) => unknown } = standardError(),
): Logger {
  return pino(
    { level, name: 'art' },
    { write: (line) => void sink.write(`${JSON.stringify(redact(JSON.parse(line)))}\n`) },
  );
}

/** Written at once: the last lines before a crash are the ones that are wanted. */
function standardError(): { readonly write: (line: string) => unknown } {
  return pino.destination({ fd: 2, sync: true });
}

export interface Tracing {
  /** Sends what is left, waiting for a limited time. */
  readonly close: () => Promise<void>;
}

/** OpenTelemetry's variables that name where spans go; its other variables hold as well. */
const endpointVariables = ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', 'OTEL_EXPORTER_OTLP_ENDPOINT'] as const;

/**
 * Starts sending spans if the environment names an OTLP endpoint; null if it names none. The exporter is an optional package.
 * Throws ConfigError with the command that installs it where it is missing.
 */
export async function startTracing(environment: NodeJS.ProcessEnv = process.env): Promise<Tracing | null> {
  const variable = endpointVariables.find((name) => (environment[name] ?? '') !== '');
  if (variable === undefined || environment.OTEL_SDK_DISABLED === 'true') return null;
  const { BatchSpanProcessor, NodeTracerProvider, OTLPTraceExporter } = await loadExporter(variable);
  const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
  provider.register();
  return { close: () => provider.shutdown() };
}

async function loadExporter(variable: string) {
  try {
    const [sdk, exporter] = await Promise.all([
      import('@opentelemetry/sdk-trace-node'),
      import('@opentelemetry/exporter-trace-otlp-http'),
    ]);
    return { ...sdk, ...exporter };
  } catch (cause) {
    const packages = '@opentelemetry/sdk-trace-node @opentelemetry/exporter-trace-otlp-http';
    const message = `${variable}: needs packages that are not installed (npm install ${packages}), got ${messageOf(cause)}`;
    throw new ConfigError(message, { cause });
  }
}
