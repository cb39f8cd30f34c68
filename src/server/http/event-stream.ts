/**
 * Server-sent events that are pushed, as a response with bounded memory. Layer 5.
 * A reader that leaves more than `maxPending` events unread is cut off; every stream here can be taken up again.
 */
import type { Context } from 'hono';
import { sseHeaders } from '../../wire/sse.ts';

/** Well below the idle limits of clients and proxies, 60 s and more. */
const keepAliveMs = 15_000;
const defaultMaxPending = 1_024;

export interface SentEvent {
  readonly event?: string;
  readonly id?: number;
  readonly data: unknown;
}

export interface EventWriter {
  /** Does nothing once the stream has ended or the reader was cut off. */
  readonly send: (event: SentEvent) => void;
  readonly end: () => void;
}

export interface EventStreamOptions {
  readonly headers?: Readonly<Record<string, string>>;
  readonly maxPending?: number;
}

/** `start` begins to send and returns what stops it; it is stopped once, when the stream ends, the reader leaves, or is cut off. */
export function answerEvents(
  c: Context,
  start: (writer: EventWriter) => () => void,
  options: EventStreamOptions = {},
): Response {
  const encoder = new TextEncoder();
  let isOpen = true;
  let stop: (() => void) | null = null;
  let keepAlive: NodeJS.Timeout | undefined;
  const close = (): void => {
    isOpen = false;
    clearInterval(keepAlive);
    stop?.();
    stop = null;
  };
  const body = new ReadableStream<Uint8Array>(
    {
      start: (controller) => {
        const push = (text: string): void => {
          if (!isOpen) return;
          if ((controller.desiredSize ?? 0) <= 0) {
            close();
            controller.error(new Error('event stream: the reader did not keep up'));
            return;
          }
          controller.enqueue(encoder.encode(text));
        };
        keepAlive = setInterval(() => push(': keep-alive\n\n'), keepAliveMs);
        keepAlive.unref();
        const end = (): void => {
          if (!isOpen) return;
          close();
          controller.close();
        };
        const started = start({ send: (event) => push(formatEvent(event)), end });
        if (isOpen) stop = started;
        else started();
      },
      cancel: close,
    },
    new CountQueuingStrategy({ highWaterMark: options.maxPending ?? defaultMaxPending }),
  );
  return c.body(body, 200, { ...sseHeaders, ...options.headers });
}

/** JSON has no raw line breaks, so one data line is enough. */
function formatEvent({ event, id, data }: SentEvent): string {
  const head = (id === undefined ? '' : `id: ${id}\n`) + (event === undefined ? '' : `event: ${event}\n`);
  return `${head}data: ${JSON.stringify(data)}\n\n`;
}
