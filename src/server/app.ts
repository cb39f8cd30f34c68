/** The HTTP app: routes, and the one place where errors become responses. Layer 5. */
import { type Context, Hono } from 'hono';
import type { ContentfulStatusCode } from 'hono/utils/http-status';
import type { Logger } from 'pino';
import { ApiError } from '../core/errors.ts';
import { toAnthropicError } from '../wire/anthropic-output.ts';
import { refuse, toHttpError } from '../wire/errors.ts';
import { handleChatCompletion } from './inference/chat-completions.ts';
import { registerCompletionsRoute } from './inference/completions.ts';
import { isMessagesPath, registerMessagesRoutes } from './inference/messages.ts';
import type { ModelLookup } from './inference/model-lookup.ts';
import { handleHealth, handleModel, handleModels } from './inference/models-route.ts';
import { registerResponsesRoutes } from './inference/responses.ts';
import { createResponseStore } from './inference/responses-store.ts';
import { joinWatches } from './observe/generation-watch.ts';
import { createServerMetrics, registerMetricsRoute } from './observe/metrics.ts';
import { observeApp } from './observe/observe.ts';
import { traceGeneration } from './observe/tracing.ts';
import { createSecurity, guardApp, type Security } from './security/security.ts';

export interface AppOptions extends ModelLookup {
  /** Adds routes of its own; errors that they throw become responses here. */
  readonly registerRoutes?: (app: Hono) => void;
  /** Default: everybody is the local user, and nothing is written down. */
  readonly security?: Security;
  /** Gets a line for each request; default: none does. */
  readonly logger?: Logger;
  /** Gets every error that the response hides; default: the logger, or standard error. */
  readonly onInternalError?: (error: unknown) => void;
}

const methods = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const;

/** An application without a port; `/v1` and `/rollouts/{id}/v1` have the same routes. */
export function createApp(given: AppOptions): Hono {
  const app = new Hono();
  const { logger } = given;
  const metrics = createServerMetrics(given);
  const options: AppOptions = { ...given, watchGeneration: joinWatches([metrics.watchGeneration, traceGeneration]) };
  const logError = (error: unknown): void => (logger === undefined ? console.error(error) : logger.error(error));
  const onInternalError = options.onInternalError ?? logError;
  const answerError = (c: Context, error: unknown): Response => {
    const { status, body, headers, isInternal } = isMessagesPath(c.req.path)
      ? toAnthropicError(error)
      : toHttpError(error);
    if (isInternal) onInternalError(error);
    return c.json(body, status as ContentfulStatusCode, { ...headers });
  };
  observeApp(app, { metrics, logger });
  guardApp(app, options.security ?? createSecurity());
  app.get('/healthz', (c) => handleHealth(c, options));
  registerMetricsRoute(app, metrics);
  // Both forms of the base URL: the second one says which rollout the calls belong to.
  const responses = createResponseStore();
  for (const base of ['/v1', '/rollouts/:rolloutId/v1']) {
    app.get(`${base}/models`, (c) => handleModels(c, options));
    app.get(`${base}/models/:id`, (c) => handleModel(c, options, c.req.param('id') ?? ''));
    app.post(`${base}/chat/completions`, (c) => handleChatCompletion(c, options));
    registerCompletionsRoute(app, base, options);
    registerResponsesRoutes(app, base, options, responses);
    registerMessagesRoutes(app, base, options);
  }
  options.registerRoutes?.(app);
  app.onError((error, c) => answerError(c, error));
  app.notFound((c) => answerError(c, routeError(app, c)));
  return app;
}

/** 405 with the methods that the path has, or 404 if it has none. */
function routeError(app: Hono, c: Context): ApiError {
  const { path, method } = c.req;
  const allowed = methods.filter((candidate) => {
    const [handlers] = app.router.match(candidate, path);
    return handlers.some(([[, route]]) => route.method === candidate);
  });
  if (allowed.length === 0) return refuse(404, 'unknown_url', `path: must be a route of this server, got ${path}`);
  const allow = allowed.join(', ');
  const message = `method: must be ${allow} for ${path}, got ${method}`;
  return new ApiError(message, 405, { details: { code: 'method_not_allowed', allow } });
}
