/** Sends one attempt and says what became of it. Every attempt ends within a limit; one that does not is a hang. */
import { type Agent, type ClientRequest, type IncomingMessage, request as openRequest } from 'node:http';
import type { Attempt } from './plan.ts';

export interface Outcome {
  /** Null where the client, or the server for a reason of HTTP itself, cut the connection. */
  readonly status: number | null;
  readonly text: string;
  readonly isHung: boolean;
  readonly milliseconds: number;
}

/** Far above what an answer takes under load, far below what a person would wait. */
export const hangLimitMs = 30_000;

/** Long streams (events of a server) have no end of their own; what came until then is enough. */
const endlessPath = /\/events(\?|$)/;
const endlessMs = 200;

export async function sendAttempt(attempt: Attempt, port: number, agent: Agent): Promise<Outcome> {
  const startedAt = performance.now();
  let request: ClientRequest | undefined;
  let text = '';
  let status: number | null = null;
  const isHung = await new Promise<boolean>((resolve) => {
    const timer = setTimeout(() => resolve(true), hangLimitMs);
    const settle = (): void => {
      clearTimeout(timer);
      resolve(false);
    };
    const { method, path, body } = attempt;
    const headers = { ...attempt.headers, ...(body !== null && { 'content-length': String(body.length) }) };
    try {
      request = openRequest({ host: '127.0.0.1', port, method, path, headers, agent });
    } catch {
      return settle(); // Node's own client refuses to send it
    }
    request.on('error', settle);
    request.on('close', settle);
    request.on('response', (response) => {
      status = response.statusCode ?? null;
      read(response, attempt, (chunk) => {
        text += chunk;
      });
      if (endlessPath.test(path)) setTimeout(() => response.destroy(), endlessMs);
      response.on('end', settle);
      response.on('error', settle);
      response.on('close', settle);
    });
    write(request, attempt);
  });
  if (isHung) request?.destroy();
  return { status, text, isHung, milliseconds: performance.now() - startedAt };
}

function write(request: ClientRequest, { body, behaviour }: Attempt): void {
  if (body === null) return void request.end();
  const half = Math.floor(body.length / 2);
  if (behaviour === 'cut request') {
    request.write(body.subarray(0, half), () => request.destroy());
  } else if (behaviour === 'slow request') {
    request.write(body.subarray(0, half));
    setTimeout(() => request.end(body.subarray(half)), 50);
  } else {
    request.end(body);
  }
}

function read(response: IncomingMessage, { behaviour }: Attempt, onText: (text: string) => void): void {
  response.setEncoding('utf8');
  if (behaviour === 'slow answer') {
    response.pause();
    setTimeout(() => response.resume(), 50);
  }
  response.on('data', (chunk: string) => {
    onText(chunk);
    if (behaviour === 'cut answer') response.destroy();
  });
}
