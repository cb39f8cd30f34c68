/** Handlers of a route table: query and body are checked with the table's schemas before a handler sees them. Layer 5. */
import type { Context, Hono } from 'hono';
import type * as z from 'zod';
import { parseWire, refuse } from '../../wire/errors.ts';
import type { RouteSpec } from '../../wire/route.ts';
import { readJson } from './read-json.ts';

const defaultBodyBytes = 2 ** 20;

export interface RouteInput<Spec> {
  readonly body: Spec extends RouteSpec<infer Body, z.ZodType> ? z.output<Body> : never;
  readonly query: Spec extends RouteSpec<z.ZodType, infer Query> ? z.output<Query> : never;
}

export type RouteHandler<Spec> = (c: Context, input: RouteInput<Spec>) => Response | Promise<Response>;

/** A handler for each row; a row without one does not compile. */
export type RouteHandlers<Table> = { readonly [K in keyof Table]: RouteHandler<Table[K]> };

/** Adds the routes of a table, or of a part of it. */
export function registerRoutes<Table extends Readonly<Record<string, RouteSpec>>>(
  app: Hono,
  table: Table,
  handlers: RouteHandlers<Table>,
): void {
  for (const [name, spec] of Object.entries(table)) {
    const handler = handlers[name as keyof Table] as RouteHandler<RouteSpec>;
    app.on(spec.method.toUpperCase(), toHonoPath(spec.path), async (c) => {
      const query = parseQuery(c, spec);
      const body = spec.body && parseWire(spec.body, await readJson(c, spec.maxBodyBytes ?? defaultBodyBytes));
      return handler(c, { query, body });
    });
  }
}

/** `{name}` of OpenAPI as `:name` of the router. */
export function toHonoPath(path: string): string {
  return path.replace(/\{(\w+)\}/g, ':$1');
}

/** A path parameter; its route has it. */
export function pathParam(c: Context, name: string): string {
  return c.req.param(name) ?? '';
}

/** A step in the path. Throws ApiError 404 for what is no number, as for a step that is not there. */
export function stepParam(c: Context): number {
  const text = pathParam(c, 'step');
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw refuse(404, 'not_found', `step: must be a whole number, got ${JSON.stringify(text.slice(0, 80))}`, 'step');
}

function parseQuery(c: Context, spec: RouteSpec): unknown {
  const query = c.req.query();
  if (spec.query !== undefined) return parseWire(spec.query, query);
  const [unknown] = Object.keys(query);
  if (unknown === undefined) return {};
  throw refuse(400, 'invalid_value', `${unknown}: unknown field`, unknown);
}
