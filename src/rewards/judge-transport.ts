/**
 * One request to a judge, in OpenAI's or Anthropic's protocol. Layer 5. It is sent once: who repeats, and how often, is the caller's business.
 * Source: OpenAI API reference, "Create chat completion"; Anthropic API reference, "Messages" (a forced tool call is its oldest structured output).
 */
import OpenAI from 'openai';
import { z } from 'zod';
import { ApiError, DataError, messageOf } from '../core/errors.ts';
import type { TokenUsage } from '../core/token-cost.ts';
import { hasRepeatedName } from './json.ts';
import type { JudgeEndpoint } from './judge-providers.ts';

/** What an endpoint takes; a judge steps down when it is refused. */
export interface RequestForm {
  readonly structure: 'schema' | 'json' | 'none';
  readonly sendsTemperature: boolean;
  readonly tokenField: 'max_tokens' | 'max_completion_tokens';
}

export interface JudgeRequest {
  readonly system: string;
  readonly user: string;
  /** JSON schema of the answer. */
  readonly schema: object;
  /** Null: the endpoint's default. */
  readonly temperature: number | null;
  readonly maxTokens: number;
  /** More fields of the request's body. */
  readonly extraBody: Readonly<Record<string, unknown>>;
}

export interface JudgeReply {
  readonly text: string;
  /** The judge would not answer. */
  readonly isRefusal: boolean;
  /** Tokens ran out before the end. */
  readonly isTruncated: boolean;
  /** Null where the endpoint did not say. */
  readonly usage: TokenUsage | null;
}

const count = z.number().nonnegative().nullish();
const chatReply = z.object({
  choices: z.array(
    z.object({
      message: z.object({ content: z.string().nullish(), refusal: z.string().nullish() }),
      finish_reason: z.string().nullish(),
    }),
  ),
  usage: z
    .object({
      prompt_tokens: count,
      completion_tokens: count,
      prompt_tokens_details: z.object({ cached_tokens: count }).nullish(),
    })
    .nullish(),
});

/** Throws ApiError with the status (0: no whole answer arrived), or DataError for an answer that is none of the protocol. */
export async function askChatCompletions(
  client: OpenAI,
  model: string,
  request: JudgeRequest,
  form: RequestForm,
  signal: AbortSignal,
): Promise<JudgeReply> {
  const { system, user, schema, temperature, maxTokens, extraBody } = request;
  const format = {
    schema: { type: 'json_schema', json_schema: { name: 'scores', strict: true, schema } },
    json: { type: 'json_object' },
    none: undefined,
  }[form.structure];
  const body = {
    model,
    messages: [
      { role: 'system', content: system },
      { role: 'user', content: user },
    ],
    [form.tokenField]: maxTokens,
    ...(form.sendsTemperature && temperature !== null && { temperature }),
    ...(format !== undefined && { response_format: format }),
    ...extraBody,
  };
  let answer: unknown;
  try {
    // Its own limits are off: the caller's signal covers the body too, which the client's time limit does not.
    const options = { signal, maxRetries: 0, timeout: 2 ** 31 - 1 };
    answer = await client.chat.completions.create(
      body as unknown as OpenAI.ChatCompletionCreateParamsNonStreaming,
      options,
    );
  } catch (error) {
    throw toApiError(error, client.apiKey);
  }
  const parsed = chatReply.safeParse(answer);
  if (!parsed.success) throw notOfProtocol(parsed.error);
  const { choices, usage } = parsed.data;
  const choice = choices[0];
  return {
    text: choice?.message.content ?? '',
    isRefusal: Boolean(choice?.message.refusal) || choice?.finish_reason === 'content_filter',
    isTruncated: choice?.finish_reason === 'length',
    usage: usage
      ? {
          promptTokens: usage.prompt_tokens ?? 0,
          completionTokens: usage.completion_tokens ?? 0,
          cachedPromptTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
        }
      : null,
  };
}

const messagesReply = z.object({
  content: z.array(z.looseObject({ type: z.string(), text: z.string().optional(), input: z.unknown().optional() })),
  stop_reason: z.string().nullish(),
  usage: z
    .object({
      input_tokens: count,
      output_tokens: count,
      cache_read_input_tokens: count,
      cache_creation_input_tokens: count,
    })
    .nullish(),
});

/** The same for Anthropic's Messages. */
export async function askMessages(
  endpoint: JudgeEndpoint,
  model: string,
  request: JudgeRequest,
  form: RequestForm,
  signal: AbortSignal,
): Promise<JudgeReply> {
  const { system, user, schema, temperature, maxTokens, extraBody } = request;
  const tool = { name: 'give_scores', description: 'Gives the scores.', input_schema: schema };
  const body = {
    model,
    system,
    messages: [{ role: 'user', content: user }],
    max_tokens: maxTokens,
    ...(form.sendsTemperature && temperature !== null && { temperature }),
    ...(form.structure === 'schema' && { tools: [tool], tool_choice: { type: 'tool', name: tool.name } }),
    ...extraBody,
  };
  const parsed = messagesReply.safeParse(await postMessages(endpoint, body, signal));
  if (!parsed.success) throw notOfProtocol(parsed.error);
  const { content, stop_reason, usage } = parsed.data;
  const call = content.find(({ type }) => type === 'tool_use');
  const text = content.flatMap((block) => (block.type === 'text' ? [block.text ?? ''] : [])).join('');
  const cached = usage?.cache_read_input_tokens ?? 0;
  return {
    text: call === undefined ? text : typeof call.input === 'string' ? call.input : JSON.stringify(call.input ?? null),
    isRefusal: stop_reason === 'refusal',
    isTruncated: stop_reason === 'max_tokens',
    usage: usage
      ? {
          promptTokens: (usage.input_tokens ?? 0) + cached + (usage.cache_creation_input_tokens ?? 0),
          completionTokens: usage.output_tokens ?? 0,
          cachedPromptTokens: cached,
        }
      : null,
  };
}

async function postMessages({ baseURL, apiKey }: JudgeEndpoint, body: object, signal: AbortSignal): Promise<unknown> {
  const headers = { 'content-type': 'application/json', 'x-api-key': apiKey, 'anthropic-version': '2023-06-01' };
  const request = { method: 'POST', headers, body: JSON.stringify(body), signal };
  let response: Response;
  let text: string;
  try {
    response = await fetch(`${baseURL}/v1/messages`, request);
    text = await response.text();
  } catch (error) {
    throw toApiError(error, apiKey);
  }
  if (!response.ok) {
    const retryAfter = response.headers.get('retry-after');
    const message = `judge: HTTP ${response.status}: ${withoutSecret(text.slice(0, 500), apiKey)}`;
    throw new ApiError(message, response.status, { details: { retryAfter } });
  }
  let answer: unknown;
  try {
    answer = JSON.parse(text);
  } catch (error) {
    throw new DataError('judge: an answer must be JSON', { cause: error });
  }
  // A tool's input is JSON inside of this JSON, where the parser would have kept the last of two scores.
  if (hasRepeatedName(text)) {
    throw new DataError('judge: an answer must give each name once', { details: { problem: 'repeated_id' } });
  }
  return answer;
}

/** Status 0 is a connection that failed or broke off. */
function toApiError(error: unknown, secret: string | null): ApiError | DataError {
  if (error instanceof SyntaxError) return new DataError('judge: an answer must be JSON', { cause: error });
  const message = `judge: ${withoutSecret(messageOf(error), secret)}`;
  if (!(error instanceof OpenAI.APIError) || error.status === undefined) return new ApiError(message, 0);
  const retryAfter = (error.headers as Headers | undefined)?.get('retry-after') ?? null;
  return new ApiError(message, error.status as number, { details: { retryAfter } });
}

function withoutSecret(text: string, secret: string | null): string {
  return secret ? text.replaceAll(secret, '[key]') : text;
}

function notOfProtocol(error: z.ZodError): DataError {
  const issue = error.issues[0];
  return new DataError(`judge: an answer must follow the protocol: ${issue?.path.join('.')}: ${issue?.message}`);
}
