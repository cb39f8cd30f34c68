/** Trajectories as spans by OpenTelemetry's conventions for generative AI. Layer 6, no I/O. */
import type { TracedTrajectory } from './traces.ts';

type Time = [number, number];
type Attributes = Record<string, string | number>;

/** The fields of a finished span that exporters read, but for resource and scope. */
export interface FinishedSpan {
  readonly name: string;
  readonly kind: number;
  readonly spanContext: () => SpanContext;
  readonly parentSpanContext?: SpanContext;
  readonly startTime: Time;
  readonly endTime: Time;
  readonly duration: Time;
  readonly ended: true;
  readonly status: { readonly code: number };
  readonly attributes: Attributes;
  readonly links: never[];
  readonly events: { name: string; time: Time; attributes: Attributes }[];
  readonly droppedAttributesCount: number;
  readonly droppedEventsCount: number;
  readonly droppedLinksCount: number;
}

interface SpanContext {
  readonly traceId: string;
  readonly spanId: string;
  /** 1: sampled. */
  readonly traceFlags: number;
}

/** A span `invoke_agent` with an evaluation for each finite score, then a span `chat` for each turn whose texts are there. */
export function toSpans({ id, startMs, endMs, facts, scores, trajectory, turns }: TracedTrajectory): FinishedSpan[] {
  const { project, ...others } = facts;
  const times = { startTime: toTime(startMs), endTime: toTime(endMs), duration: toTime(endMs - startMs) };
  const root = { traceId: id.slice(0, 32), spanId: id.slice(32, 48), traceFlags: 1 };
  const finite = Object.entries(scores).filter(([, value]) => Number.isFinite(value));
  const { texts } = trajectory;
  const own = Object.fromEntries(
    Object.entries({ project: project!, ...others }).map(([key, value]) => [`art.${key}`, value]),
  );
  const agent = span(`invoke_agent ${facts.name}`, root, times, {
    'gen_ai.operation.name': 'invoke_agent',
    'gen_ai.agent.name': String(facts.name),
    ...own,
    ...(texts && { 'art.metadata': JSON.stringify(texts.metadata), 'art.logs': JSON.stringify(texts.logs) }),
  });
  agent.events.push(
    ...finite.map(([name, value]) => ({
      name: 'gen_ai.evaluation.result',
      time: times.endTime,
      attributes: { 'gen_ai.evaluation.name': name, 'gen_ai.evaluation.score.value': value },
    })),
  );
  const chats = turns.map((turn) => {
    const context = { ...root, spanId: turn.id.slice(32, 48) };
    const attributes = {
      'gen_ai.operation.name': 'chat',
      'gen_ai.request.model': turn.model,
      'gen_ai.input.messages': JSON.stringify(turn.input.map(toMessage)),
      'gen_ai.output.messages': JSON.stringify([toMessage(turn.output)]),
      ...(turn.tools !== null && { 'gen_ai.tool.definitions': JSON.stringify(turn.tools) }),
    };
    return { ...span(`chat ${turn.model}`, context, times, attributes), parentSpanContext: root };
  });
  return [agent, ...chats];
}

function span(
  name: string,
  context: SpanContext,
  times: Pick<FinishedSpan, 'startTime' | 'endTime' | 'duration'>,
  attributes: Attributes,
): FinishedSpan {
  const counts = { droppedAttributesCount: 0, droppedEventsCount: 0, droppedLinksCount: 0 };
  const rest = { kind: 0, ended: true as const, status: { code: 0 }, links: [], events: [] };
  return { name, spanContext: () => context, attributes, ...times, ...rest, ...counts };
}

/** OpenAI's message as the conventions have it: a role and parts. */
function toMessage(message: Readonly<Record<string, unknown>>): object {
  const { role, content, tool_calls: calls, tool_call_id: callId } = message;
  if (role === 'tool') return { role, parts: [{ type: 'tool_call_response', id: callId, response: content }] };
  const text = content === null || content === undefined || content === '' ? [] : [{ type: 'text', content }];
  const parts = (Array.isArray(calls) ? calls : []).map(({ id, function: called }) => ({
    type: 'tool_call',
    id,
    name: called?.name,
    arguments: called?.arguments,
  }));
  return { role, parts: [...text, ...parts] };
}

/** Seconds and nanoseconds. */
export function toTime(ms: number): Time {
  const seconds = Math.floor(ms / 1000);
  return [seconds, Math.round((ms - seconds * 1000) * 1e6)];
}
