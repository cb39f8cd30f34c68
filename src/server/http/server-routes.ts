/** Events, health, and the description of the API. Layer 5. */
import type { Context } from 'hono';
import { messageOf } from '../../core/errors.ts';
import type { apiRoutes } from '../../wire/api-routes.ts';
import type { Health } from '../../wire/data.ts';
import { refuse } from '../../wire/errors.ts';
import type { ServerEvent } from '../../wire/events.ts';
import { readEngineInfo } from '../inference/model-lookup.ts';
import { readPackageVersion } from '../store/run-folder.ts';
import type { ModelRegistry } from '../training/model-registry.ts';
import type { TrainingRun } from '../training/training-run.ts';
import { docsPolicy, renderDocs } from './docs-page.ts';
import { answerEvents } from './event-stream.ts';
import { type OpenApiDocument, openApiDocument } from './openapi.ts';
import type { RouteHandlers } from './routes.ts';

/** Events that a reader may leave unread before it is cut off; the ring of the hub holds more. */
const maxPendingEvents = 1_024;

type Names = 'events' | 'health' | 'openapi' | 'docs';

export function serverHandlers(registry: ModelRegistry): RouteHandlers<Pick<typeof apiRoutes, Names>> {
  let description: Promise<OpenApiDocument> | undefined;
  const describeApi = (): Promise<OpenApiDocument> => {
    description ??= readPackageVersion().then(openApiDocument);
    return description;
  };
  return {
    events: (c, { query }) =>
      followEvents(c, registry, { model: query.model ?? null }, lastEventId(c, query.last_event_id)),
    health: async (c) => {
      const state = await readHealth(registry);
      return c.json(state, state.status === 'ok' ? 200 : 503);
    },
    openapi: async (c) => c.json(await describeApi()),
    docs: async (c) => {
      const { html, styleSha256 } = renderDocs(await describeApi());
      return c.html(html, 200, { 'content-security-policy': docsPolicy(styleSha256) });
    },
  };
}

function followEvents(
  c: Context,
  registry: ModelRegistry,
  filter: { readonly model: string | null },
  lastId: number | null,
): Response {
  const { events } = registry;
  return answerEvents(
    c,
    ({ send }) => {
      const { events: missed, isReset } = events.replay(lastId, filter);
      if (isReset && lastId !== null) {
        const next = missed[0]?.id ?? events.nextId();
        send({ event: 'reset', id: next - 1, data: { last_event_id: lastId, next_event_id: next } });
      }
      const pass = ({ id, type, data }: ServerEvent): void => send({ event: type, id, data });
      for (const event of missed) pass(event);
      return events.subscribe(filter, pass);
    },
    // What a reader missed is sent at once, and must not count as unread.
    { maxPending: maxPendingEvents + events.capacity },
  );
}

function lastEventId(c: Context, fromQuery: number | undefined): number | null {
  const header = c.req.header('last-event-id');
  if (header === undefined || header === '') return fromQuery ?? null;
  if (/^\d{1,16}$/.test(header) && Number.isSafeInteger(Number(header))) return Number(header);
  throw refuse(
    400,
    'invalid_value',
    `last-event-id: must be an id of this server, got ${JSON.stringify(header.slice(0, 80))}`,
  );
}

async function readHealth(registry: ModelRegistry): Promise<Health> {
  const models = await Promise.all(registry.list().map(describeModel));
  const { rss, heapUsed } = process.memoryUsage();
  return {
    status: models.every(({ status }) => status === 'ok') ? 'ok' : 'unavailable',
    version: await readPackageVersion(),
    node_version: process.version,
    uptime_seconds: process.uptime(),
    memory: { rss_bytes: rss, heap_used_bytes: heapUsed },
    models,
  };
}

async function describeModel(run: TrainingRun): Promise<Health['models'][number]> {
  const { model } = run;
  const state = model.engine.state?.() ?? 'running';
  const identity = {
    name: model.name,
    project: model.project,
    step: model.step(),
    engine_state: state,
    training_jobs: run.activeJobs(),
  };
  const down = (error: string) => ({ ...identity, status: 'unavailable' as const, engine: null, error });
  // Asking an engine that is being started again would wait for it.
  if (state === 'restarting') return down('engine: must be running, is being started again');
  try {
    const info = await readEngineInfo(model);
    const engine = {
      policy_steps: [...info.policySteps],
      running_sequences: info.runningSequences,
      waiting_sequences: info.waitingSequences,
      rss_bytes: info.rssBytes,
      sampled_tokens: info.sampledTokens,
    };
    return { ...identity, status: 'ok', engine, error: null };
  } catch (error) {
    return down(messageOf(error));
  }
}
