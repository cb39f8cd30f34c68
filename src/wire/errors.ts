/**
 * The one table from error class to HTTP status, and OpenAI's error body. Layer 0.
 * Source: OpenAI API reference, "Error codes". Internal errors say nothing about themselves on the wire.
 */
import * as z from 'zod';
import {
  AbortedError,
  ApiError,
  CheckpointError,
  ConfigError,
  DataError,
  EngineError,
  messageOf,
  ShapeError,
  StorageError,
} from '../core/errors.ts';

/** OpenAI's error body; clients read `error.message` and `error.code`. */
export const errorBody = z.object({
  error: z.object({
    message: z.string(),
    type: z.string(),
    param: z.string().nullable(),
    code: z.string().nullable(),
  }),
});
export type ErrorBody = z.infer<typeof errorBody>;

export interface HttpError {
  readonly status: number;
  readonly body: ErrorBody;
  readonly headers: Readonly<Record<string, string>>;
  /** The error is not one of ours: the body hides it, so it must be reported elsewhere. */
  readonly isInternal: boolean;
}

interface Row {
  readonly matches: (error: unknown) => boolean;
  readonly status: (error: unknown) => number;
}

/** `nginx`'s 499: the client closed the connection before the answer; a deadline of ours is 408. */
const table: readonly Row[] = [
  { matches: (error) => error instanceof ApiError, status: (error) => (error as ApiError).status },
  { matches: (error) => error instanceof ConfigError || error instanceof DataError, status: () => 400 },
  { matches: (error) => error instanceof z.core.$ZodError, status: () => 400 },
  { matches: isRetryable, status: () => 503 },
  { matches: (error) => error instanceof StorageError, status: () => 507 },
  { matches: (error) => error instanceof EngineError || error instanceof CheckpointError, status: () => 500 },
  { matches: (error) => error instanceof AbortedError, status: (error) => (isDeadline(error) ? 408 : 499) },
  { matches: isAbort, status: () => 499 },
];

/** Status, headers and body of any thrown value. */
export function toHttpError(error: unknown): HttpError {
  const row = table.find((candidate) => candidate.matches(error));
  if (row === undefined || error instanceof ShapeError) {
    return { status: 500, body: bodyOf('internal error', 500, null, 'internal_error'), headers: {}, isInternal: true };
  }
  const status = row.status(error);
  const headers: Record<string, string> = {};
  if (status === 503 || status === 429) headers['retry-after'] = '1';
  const allow = detail(error, 'allow');
  if (allow !== null) headers.allow = allow;
  const wwwAuthenticate = detail(error, 'wwwAuthenticate');
  if (wwwAuthenticate !== null) headers['www-authenticate'] = wwwAuthenticate;
  const retryAfter = detail(error, 'retryAfter');
  if (retryAfter !== null) headers['retry-after'] = retryAfter;
  return { status, body: { ...bodyOfKnown(error, status), ...extraBody(error) }, headers, isInternal: false };
}

/** A refused request: the status, OpenAI's `code`, the message, and the field it is about. */
export function refuse(status: number, code: string, message: string, param: string | null = null): ApiError {
  return new ApiError(message, status, { details: { code, param } });
}

/** A bounded queue is full. `retryAfterSeconds` becomes the header, as whole seconds from 1 to 60. */
export function refuseBusy(code: string, message: string, retryAfterSeconds: number): ApiError {
  const seconds = Math.min(60, Math.max(1, Math.ceil(retryAfterSeconds)));
  return new ApiError(message, 429, { details: { code, param: null, retryAfter: String(seconds) } });
}

/** Parses what came over the wire; throws ApiError 400 that names the field, the rule and the value got. */
export function parseWire<T>(schema: z.ZodType<T>, value: unknown): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const { param, message } = describeIssue(result.error.issues[0], value);
  throw refuse(400, 'invalid_value', message, param);
}

/** `field: rule, got value` of a zod issue; `value` is the whole input. */
export function describeIssue(
  issue: z.core.$ZodIssue | undefined,
  value: unknown,
): { readonly param: string; readonly message: string } {
  if (issue === undefined) return { param: '', message: 'must match the schema' };
  const inner = issue.code === 'invalid_union' ? deepestBranch(issue) : undefined;
  if (inner !== undefined) {
    return describeIssue({ ...inner, path: [...issue.path, ...inner.path] } as z.core.$ZodIssue, value);
  }
  const path = issue.code === 'unrecognized_keys' ? [...issue.path, issue.keys[0] as string] : issue.path;
  const param = formatPath(path);
  const got = valueAt(value, issue.path);
  const prefix = param === '' ? '' : `${param}: `;
  if (issue.code === 'unrecognized_keys') return { param, message: `${prefix}unknown field` };
  if (got === undefined) return { param, message: `${prefix}is required` };
  return { param, message: `${prefix}${ruleOf(issue)}, got ${formatValue(got)}` };
}

/** A short form of a value for messages. */
export function formatValue(value: unknown): string {
  let text: string;
  try {
    text = JSON.stringify(value) ?? String(value);
  } catch {
    text = 'a value nested too deep to be shown'; // JSON.stringify recurses
  }
  return text.length > 80 ? `${text.slice(0, 77)}…` : text;
}

function ruleOf(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case 'invalid_type':
      return mustBe(issue.expected);
    case 'invalid_value':
      // A schema may say more than the values: zod's own messages all begin like this.
      if (!issue.message.startsWith('Invalid')) return issue.message;
      return `must be ${issue.values.length > 1 ? 'one of ' : ''}${issue.values.map(String).join(', ')}`;
    case 'too_small':
      return `must be ${issue.inclusive === false ? '>' : '≥'} ${issue.minimum}${sizeUnit(issue.origin)}`;
    case 'too_big':
      return `must be ${issue.inclusive === false ? '<' : '≤'} ${issue.maximum}${sizeUnit(issue.origin)}`;
    case 'invalid_key':
      return issue.issues[0]?.message ?? issue.message;
    default:
      return issue.message;
  }
}

function mustBe(expected: string): string {
  const noun = expected === 'int' ? 'integer' : expected;
  return `must be ${/^[aeio]/.test(noun) ? 'an' : 'a'} ${noun}`;
}

function sizeUnit(origin: string): string {
  if (origin === 'string') return ' characters';
  return origin === 'array' ? ' entries' : '';
}

/** Of a union's branches the one that got furthest: its issue is about what the sender meant. */
function deepestBranch(issue: z.core.$ZodIssueInvalidUnion): z.core.$ZodIssue | undefined {
  const firsts = issue.errors.flatMap((issues) => issues.slice(0, 1));
  const depth = (candidate: z.core.$ZodIssue): number => candidate.path.length;
  const best = firsts.reduce<z.core.$ZodIssue | undefined>(
    (deepest, candidate) => (deepest === undefined || depth(candidate) > depth(deepest) ? candidate : deepest),
    undefined,
  );
  return best !== undefined && depth(best) > 0 ? best : undefined;
}

function formatPath(path: readonly PropertyKey[]): string {
  return path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`;
    return text === '' ? String(key) : `${text}.${String(key)}`;
  }, '');
}

function valueAt(value: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (current, key) => (typeof current === 'object' && current !== null ? Reflect.get(current, key) : undefined),
    value,
  );
}

function bodyOfKnown(error: unknown, status: number): ErrorBody {
  if (error instanceof z.core.$ZodError) {
    const { param, message } = describeIssue(error.issues[0], undefined);
    return bodyOf(message, status, param, 'invalid_value');
  }
  return bodyOf(messageOf(error), status, detail(error, 'param'), detail(error, 'code') ?? codeOf(error));
}

function bodyOf(message: string, status: number, param: string | null, code: string | null): ErrorBody {
  return { error: { message, type: status < 500 ? 'invalid_request_error' : 'server_error', param, code } };
}

function codeOf(error: unknown): string | null {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : null;
}

/** Fields beside `error` that an answer carries for programs: `details.body` of an ApiError. */
function extraBody(error: unknown): Readonly<Record<string, unknown>> {
  const extra = error instanceof ApiError ? error.details.body : undefined;
  return typeof extra === 'object' && extra !== null ? (extra as Readonly<Record<string, unknown>>) : {};
}

function detail(error: unknown, key: string): string | null {
  const value = (error as { details?: Readonly<Record<string, unknown>> } | null)?.details?.[key];
  return typeof value === 'string' ? value : null;
}

function isRetryable(error: unknown): boolean {
  return error instanceof EngineError && error.details.isRetryable === true;
}

function isDeadline(error: unknown): boolean {
  return error instanceof AbortedError && error.details.isDeadline === true;
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === 'AbortError';
}
