/** What is known of every request from outside: metrics, the structured log, the trace it belongs to. Layer 5. */
import type { ServerResponse } from 'node:http';
import type { Context, Hono } from 'hono';
import { routePath } from 'hono/route';
import type { Logger } from 'pino';
import type { ServerMetrics } from './metrics.ts';
import { withRemoteTrace } from './tracing.ts';

export interface Observation {
  readonly metrics: ServerMetrics;
  /** Default: requests are not logged. */
  readonly logger: Logger | undefined;
}

/** Asked for by machines every few seconds. */
const frequentRoutes: readonly string[] = ['/healthz', '/metrics', '/api/health'];

/** Comes before the guard, so that refused requests are seen too. */
export function observeApp(app: Hono, observation: Observation): void {
  app.use('*', async (c, next) => {
    const startedAt = performance.now();
    const outgoing = (c.env as { readonly outgoing?: ServerResponse } | undefined)?.outgoing;
    const tell = (): void => report(c, observation, (performance.now() - startedAt) / 1000);
    // Over HTTP an answer ends when it has been sent, or given up; without a connection it ends here.
    outgoing?.once('close', tell);
    await withRemoteTrace(c, next);
    if (outgoing === undefined) tell();
  });
}

function report(c: Context, { metrics, logger }: Observation, seconds: number): void {
  const { method } = c.req;
  const matched = routePath(c, -1);
  const route = matched === '*' || matched === '/*' ? 'none' : matched;
  const { status } = c.res;
  metrics.observeRequest(method, route, status, seconds);
  if (logger === undefined) return;
  const level = status >= 500 ? 'error' : frequentRoutes.includes(route) ? 'debug' : 'info';
  // Without the query and without headers: both may hold what is secret.
  logger[level](
    {
      request_id: c.res.headers.get('x-request-id'),
      method,
      route,
      path: c.req.path,
      status,
      ms: Math.round(seconds * 1e5) / 100,
    },
    'request',
  );
}
