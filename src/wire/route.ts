/**
 * What a route is: the table row that its handler, its entry in `/openapi.json` and its scope are made of. Layer 0.
 * Path parameters stand in braces; query and body are checked with these schemas before a handler sees them.
 */
import * as z from 'zod';

/** What a key must be allowed to do; `open` needs none. */
export type RouteScope = 'open' | 'infer' | 'train' | 'admin';

export interface RouteResponse {
  readonly description: string;
  /** JSON, unless `contentType` says otherwise. */
  readonly schema?: z.ZodType;
  readonly contentType?: string;
  /** The data of each server-sent event, by name; `message` is an event without one. */
  readonly events?: Readonly<Record<string, z.ZodType>>;
}

export interface RouteSpec<Body extends z.ZodType = z.ZodType, Query extends z.ZodType = z.ZodType> {
  readonly method: 'get' | 'post' | 'put' | 'delete';
  readonly path: string;
  /** Heading on the documentation page. */
  readonly tag: string;
  readonly summary: string;
  /** More than the summary says; plain text. */
  readonly details?: string;
  readonly scope: RouteScope;
  readonly query?: Query;
  readonly body?: Body;
  /** Largest body; default 1 MiB. */
  readonly maxBodyBytes?: number;
  readonly responses: Readonly<Record<number, RouteResponse>>;
  /** Statuses of errors that belong to this route; those of every route are added to them. */
  readonly errors?: readonly number[];
  /** The first call is answered 409 with a token, and only the call that carries it does anything. */
  readonly isConfirmed?: boolean;
}

/** A row whose schemas keep their types. */
export function defineRoute<
  Body extends z.ZodType = z.ZodUndefined,
  Query extends z.ZodType = z.ZodObject<Record<never, never>>,
>(spec: RouteSpec<Body, Query>): RouteSpec<Body, Query> {
  return spec;
}

/** A whole number in a query. */
export function queryInteger(minimum: number, maximum: number): z.ZodType<number, string> {
  return z
    .string()
    .regex(/^\d{1,16}$/, 'must be a whole number')
    .transform(Number)
    .pipe(z.int().min(minimum).max(maximum)) as unknown as z.ZodType<number, string>;
}

/** `true` or `false` in a query. */
export const queryBoolean: z.ZodType<boolean, 'true' | 'false'> = z
  .enum(['true', 'false'])
  .transform((text) => text === 'true')
  .pipe(z.boolean());
