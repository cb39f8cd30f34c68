/** `POST /v1/completions`: text or token ids go on as they are, without a template. Layer 5. An adapter over `generation.ts`. */
import { randomUUID } from 'node:crypto';
import type { Context, Hono } from 'hono';
import type { GenerationRequest, GenerationUsage } from '../../core/generation.ts';
import {
  type CompletionChoice,
  type CompletionRequest,
  type CompletionResponse,
  parseCompletionRequest,
} from '../../wire/completions.ts';
import { toHttpError } from '../../wire/errors.ts';
import { wireUsage } from '../../wire/openai-response.ts';
import { sseData, sseDone } from '../../wire/sse.ts';
import { mergeEvents } from '../http/merge-events.ts';
import { readJson } from '../http/read-json.ts';
import { streamResponse } from '../http/stream-response.ts';
import { PromptWriter, wholeChoices } from './completions-writer.ts';
import { collectGeneration, type GenerationStart, generate, linkAborter } from './generation.ts';
import { sourceOf, stepHeaders } from './generation-headers.ts';
import type { ModelLookup } from './model-lookup.ts';

const maxBodyBytes = 10 * 1024 * 1024;

/** Adds the route below `base`, which is `/v1` or `/rollouts/:rolloutId/v1`. */
export function registerCompletionsRoute(app: Hono, base: string, lookup: ModelLookup): void {
  app.post(`${base}/completions`, (c) => handleCompletion(c, lookup));
}

async function handleCompletion(c: Context, lookup: ModelLookup): Promise<Response> {
  const request = parseCompletionRequest(await readJson(c, maxBodyBytes));
  const id = `cmpl-${randomUUID()}`;
  const requests = toGenerationRequests(request, id, sourceOf(c));
  const base: ResponseBase = {
    id,
    object: 'text_completion',
    created: Math.floor(Date.now() / 1000),
    model: request.model,
  };
  const aborter = linkAborter(c.req.raw.signal);
  if (request.isStreaming) {
    const headers: Record<string, string> = {};
    const onStart = (start: GenerationStart): void => {
      Object.assign(headers, stepHeaders(start, start.policyStep));
    };
    const sources = requests.map((generation) => generate(lookup, generation, aborter.signal));
    const stop = (): void => aborter.abort();
    const chunks = streamChunks(sources, request, base, { onStart, stop });
    return await streamResponse(c, chunks, headers, stop);
  }
  try {
    const generations = await Promise.all(
      requests.map((generation) => collectGeneration(lookup, generation, aborter.signal)),
    );
    const response: CompletionResponse = {
      ...base,
      choices: generations.flatMap((generation, index) => wholeChoices(request, generation, index)),
      usage: wireUsage(
        addUsages(
          generations.map(({ usage }) => usage),
          request,
        ),
      ),
    };
    const [first] = generations;
    const headers = first === undefined ? {} : stepHeaders(first.start, first.choices[0]?.policyStep ?? null);
    return c.body(JSON.stringify(response), 200, { 'content-type': 'application/json', ...headers });
  } catch (error) {
    aborter.abort(); // the other prompts
    throw error;
  }
}

/** One request a prompt. Each has a completion id of its own, the response's where there is one prompt. */
function toGenerationRequests(
  request: CompletionRequest,
  id: string,
  source: Pick<GenerationRequest, 'rolloutId' | 'keyId'>,
): readonly GenerationRequest[] {
  return request.prompts.map((prompt, index) => ({
    id: request.prompts.length === 1 ? id : `${id}-${index}`,
    model: request.model,
    prompt,
    ...source,
    n: request.n,
    sampling: request.sampling,
    seed: request.seed,
    toolChoice: 'none',
    isParallelToolCalls: true,
    format: { type: 'text' },
    topLogprobs: request.topLogprobs,
    promptLogprobs: request.promptLogprobs,
    isRecorded: !request.isPromptOnly,
  }));
}

type ResponseBase = Omit<CompletionResponse, 'choices' | 'usage'>;

function addUsages(usages: readonly GenerationUsage[], { isPromptOnly }: CompletionRequest): GenerationUsage {
  const sum = (key: keyof GenerationUsage): number => usages.reduce((total, usage) => total + usage[key], 0);
  return {
    promptTokens: sum('promptTokens'),
    completionTokens: isPromptOnly ? 0 : sum('completionTokens'),
    cachedTokens: sum('cachedTokens'),
  };
}

/**
 * The whole event stream as text. An error before the first item is thrown; a later one becomes a last event with OpenAI's error body,
 * without `[DONE]`.
 */
async function* streamChunks(
  sources: readonly ReturnType<typeof generate>[],
  request: CompletionRequest,
  base: ResponseBase,
  { onStart, stop }: { readonly onStart: (start: GenerationStart) => void; readonly stop: () => void },
): AsyncGenerator<string, void> {
  const writers = new Map<number, PromptWriter>();
  const usages: GenerationUsage[] = [];
  const encode = (choices: readonly CompletionChoice[], usage: CompletionResponse['usage'] = null): string =>
    sseData({ ...base, choices, ...(request.hasStreamUsage && { usage }) });
  try {
    for await (const [index, event] of mergeEvents(sources)) {
      if (event.type === 'started') {
        if (writers.size === 0) onStart(event.start);
        writers.set(index, new PromptWriter(request, event.start, index));
      }
      if (event.type === 'usage') usages.push(event.usage);
      const choices = writers.get(index)?.write(event) ?? [];
      if (choices.length > 0) yield encode(choices);
    }
    if (request.hasStreamUsage) yield encode([], wireUsage(addUsages(usages, request)));
    yield sseDone;
  } catch (error) {
    if (writers.size === 0) throw error;
    yield sseData(toHttpError(error).body);
  } finally {
    stop(); // the other prompts, where one has failed
  }
}
