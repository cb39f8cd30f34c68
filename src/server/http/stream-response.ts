/** A stream of server-sent events as a response. Layer 5. */
import type { Context } from 'hono';
import { sseHeaders } from '../../wire/sse.ts';

/**
 * The first item is awaited before the headers are sent, so that what is thrown until then becomes a status, not a broken stream.
 * `headers` are read after it. When the client drops the body, `stop` must end what `items` waits for.
 */
export async function streamResponse(
  c: Context,
  items: AsyncIterator<string, void>,
  headers: Readonly<Record<string, string>>,
  stop: () => void,
): Promise<Response> {
  const first = await items.next();
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => {
      if (!first.done) controller.enqueue(encoder.encode(first.value));
    },
    pull: async (controller) => {
      const { done, value } = await items.next();
      if (done) controller.close();
      else controller.enqueue(encoder.encode(value));
    },
    cancel: async () => {
      stop();
      // A generator that waits for its reader, not for `stop`, ends by this alone.
      await items.return?.();
    },
  });
  return c.body(body, 200, { ...sseHeaders, ...headers });
}
