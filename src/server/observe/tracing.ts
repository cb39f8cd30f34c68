/**
 * A span for each generation, by OpenTelemetry's conventions for generative AI. Layer 5.
 * Spans go where the process' tracer provider sends them; without one they cost next to nothing. Texts are never part of a span.
 * Source: OpenTelemetry semantic conventions 1.45, gen_ai (in development).
 */
import { type Attributes, context, propagation, type Span, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import type { Context } from 'hono';
import { messageOf } from '../../core/errors.ts';
import type { GenerationRequest } from '../../core/generation.ts';
import { parseModelName } from '../inference/model-lookup.ts';
import type { WatchGeneration } from './generation-watch.ts';

const tracerName = 'agent-reinforcement-trainer';

/** Runs the rest of a request inside the trace that its client began. */
export function withRemoteTrace<T>(c: Context, work: () => Promise<T>): Promise<T> {
  const traceparent = c.req.header('traceparent');
  if (traceparent === undefined) return work();
  const tracestate = c.req.header('tracestate');
  const carrier = { traceparent, ...(tracestate !== undefined && { tracestate }) };
  return context.with(propagation.extract(context.active(), carrier), work);
}

export const traceGeneration: WatchGeneration = (request) => {
  const operation = request.prompt.type === 'chat' ? 'chat' : 'text_completion';
  const { name } = parseModelName(request.model);
  const span = trace.getTracer(tracerName).startSpan(`${operation} ${name}`, {
    kind: SpanKind.INTERNAL,
    attributes: requestAttributes(request, operation),
  });
  return {
    started: () => span.addEvent('gen_ai.first_token'),
    ended: (usage, choices) => {
      const [first] = choices;
      span.setAttributes({
        'gen_ai.response.finish_reasons': choices.map(({ finishReason }) => finishReason),
        'gen_ai.usage.input_tokens': usage.promptTokens,
        'gen_ai.usage.output_tokens': usage.completionTokens,
        'gen_ai.usage.cache_read.input_tokens': usage.cachedTokens,
        ...(first !== undefined && {
          'gen_ai.response.model': `${name}@${first.policyStep}`,
          'art.policy_step': first.policyStep,
        }),
      });
      span.end();
    },
    failed: (error) => fail(span, error),
  };
};

function requestAttributes(request: GenerationRequest, operation: string): Attributes {
  const { sampling } = request;
  const optional: Record<string, number | undefined> = {
    'gen_ai.request.max_tokens': sampling.maxTokens ?? undefined,
    'gen_ai.request.seed': request.seed ?? undefined,
    'gen_ai.request.frequency_penalty': sampling.frequencyPenalty,
    'gen_ai.request.presence_penalty': sampling.presencePenalty,
    'gen_ai.request.top_k': sampling.topK === 0 ? undefined : sampling.topK,
    'gen_ai.request.choice.count': request.n === 1 ? undefined : request.n,
  };
  const given = Object.entries(optional).filter(([, value]) => value !== undefined);
  return {
    'gen_ai.operation.name': operation,
    'gen_ai.provider.name': tracerName,
    'gen_ai.request.model': request.model,
    'gen_ai.response.id': request.id,
    'gen_ai.request.temperature': sampling.temperature,
    'gen_ai.request.top_p': sampling.topP,
    ...(request.rolloutId !== null && { 'gen_ai.conversation.id': request.rolloutId }),
    ...(Object.fromEntries(given) as Attributes),
  };
}

function fail(span: Span, error: unknown): void {
  const code = (error as { readonly code?: unknown } | null)?.code;
  span.setAttribute('error.type', typeof code === 'string' ? code : 'unknown');
  span.setStatus({ code: SpanStatusCode.ERROR, message: messageOf(error) });
  span.end();
}
