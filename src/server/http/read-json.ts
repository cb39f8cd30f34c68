/** The body of a request as JSON, with a size limit. Layer 5. */
import type { Context } from 'hono';
import { AbortedError, ApiError, messageOf } from '../../core/errors.ts';
import { refuse } from '../../wire/errors.ts';
import { checkJsonDepth, checkMessageCount } from './json-limits.ts';

const jsonType = /^application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;

/**
 * Throws ApiError 415 if the body is not declared as JSON, 413 if it has more than `maxBytes` bytes, 400 if it is not JSON or nests too
 * deep, AbortedError if the client leaves before all of it has come.
 * A browser sends other types, or none, to a foreign server without asking it first.
 */
export async function readJson(c: Context, maxBytes: number): Promise<unknown> {
  const type = c.req.header('content-type');
  if (type === undefined || !jsonType.test(type)) {
    const message = `content-type: must be application/json, got ${type ?? 'none'}`;
    throw refuse(415, 'unsupported_media_type', message);
  }
  const length = c.req.header('content-length');
  if (length !== undefined && Number(length) > maxBytes) throw tooLarge(maxBytes, length);
  const text = await readText(c, maxBytes, length !== undefined);
  checkJsonDepth(text);
  const json = parseJson(text);
  checkMessageCount(json);
  return json;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (cause) {
    throw refuse(400, 'invalid_json', `body: must be JSON, got ${text === '' ? 'nothing' : messageOf(cause)}`);
  }
}

async function readText(c: Context, maxBytes: number, isLengthKnown: boolean): Promise<string> {
  try {
    return isLengthKnown ? await c.req.text() : await readChunks(c, maxBytes);
  } catch (cause) {
    if (cause instanceof ApiError) throw cause;
    throw new AbortedError('body: must arrive whole, got a connection that was closed before its end', { cause });
  }
}

/** A body without a declared length (chunked) is counted while it is read. */
async function readChunks(c: Context, maxBytes: number): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of c.req.raw.body ?? []) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw tooLarge(maxBytes, `${bytes} or more`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

function tooLarge(maxBytes: number, got: string): Error {
  return refuse(413, 'request_too_large', `body: must have at most ${maxBytes} bytes, got ${got}`);
}
