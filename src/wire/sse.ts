/** Server-sent events as OpenAI writes them: one `data:` line of JSON an event, `[DONE]` last. Layer 0. Source: WHATWG HTML, section 9.2. */

/** JSON has no raw line breaks, so one line is enough. */
export function sseData(value: unknown): string {
  return `data: ${JSON.stringify(value)}\n\n`;
}

/** Ends a stream that went well. */
export const sseDone = 'data: [DONE]\n\n';

/** Of a streamed chat completion. */
export const sseHeaders: Readonly<Record<string, string>> = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  // A proxy that buffers would hold tokens back.
  'x-accel-buffering': 'no',
};

/** An event with a name, as the Responses API and Anthropic's Messages API write them. */
export function sseEvent(name: string, value: unknown): string {
  return `event: ${name}\n${sseData(value)}`;
}
