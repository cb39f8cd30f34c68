/** One request on its way to the engine: its model, its prompt as ids, and what each choice asks of the engine. Layer 5. */
import { randomInt } from 'node:crypto';
import type { TextConstraint } from '../../core/constraint.ts';
import { ApiError, DataError, EngineError } from '../../core/errors.ts';
import type { ChatPrompt, GenerationRequest } from '../../core/generation.ts';
import { deriveSeed } from '../../core/rng.ts';
import type { SampleEvent, SamplingParams } from '../../engines/engine.ts';
import { isReasoningOpen } from '../../formats/reasoning-format.ts';
import type { ReplyParserOptions } from '../../formats/reply-parser.ts';
import { refuse, refuseBusy } from '../../wire/errors.ts';
import type { Prompt } from './conversations.ts';
import { createConstraint, type ReplyForms } from './generation-constraint.ts';
import { chooseModel, endOfTurnIds, type ModelChoice, type ModelLookup, requireStep } from './model-lookup.ts';
import { genericToolFormat } from './template-input.ts';

export interface Turn extends ModelChoice {
  readonly request: GenerationRequest;
  /** Without a key where the prompt is no conversation. */
  readonly prompt: Prompt;
  readonly seed: number;
  /** Milliseconds since 1970. */
  readonly startedAt: number;
  /** Newest published step when the call came. */
  readonly newestStep: number;
  readonly maxTokens: number;
  /** Tokens that end the reply and are no part of its text. */
  readonly endIds: readonly number[];
  /** What the sampled text must look like. */
  readonly constraint: TextConstraint | null;
  /** How reasoning and calls are found in the reply; null = all of it is content. */
  readonly parsing: ReplyParserOptions | null;
}

/** Throws ApiError 404 if the model is not served, 429 if it is too busy, 400 if the prompt leaves no room for a reply. */
export async function createTurn(lookup: ModelLookup, request: GenerationRequest): Promise<Turn> {
  const choice = await chooseModel(lookup, request.model);
  if (request.rolloutId !== null) enterRollout(choice, request.rolloutId);
  requireRoom(choice, request.n, lookup.maxInFlight ?? defaultMaxInFlight);
  const { maxPositions, vocabSize } = choice.model.config;
  const { stopTokenIds = [], logitBias = [] } = request.sampling;
  for (const [id] of logitBias) checkIds([id], vocabSize, 'logit_bias');
  const prompt = createPrompt(choice, request);
  const forms = replyForms(choice, prompt);
  const turn: Turn = {
    ...choice,
    request,
    prompt,
    seed: request.seed ?? randomInt(2 ** 32),
    startedAt: performance.timeOrigin + performance.now(),
    newestStep: choice.model.step(),
    maxTokens: fitMaxTokens(request, prompt.ids.length, maxPositions),
    endIds: [...endOfTurnIds(choice.model), ...checkIds(stopTokenIds, vocabSize, 'stop_token_ids')],
    constraint: createConstraint(request, forms),
    parsing: createParsing(request, forms),
  };
  // Nothing is awaited since `requireRoom`, so that the limit holds exactly.
  choice.state.inFlight += request.n;
  return turn;
}

/** A rollout that was begun under an earlier process goes on with the very ids that were sampled then. */
function enterRollout({ model, state }: ModelChoice, rolloutId: string): void {
  const { rollouts } = model.completions;
  rollouts.admit(rolloutId);
  for (const { record, call } of rollouts.takeRecalled(rolloutId)) {
    if (call === null || call.promptKey === '') continue;
    const { promptIds: ids } = record;
    const prompt: Prompt = { ids, origin: 'started', key: call.promptKey, text: model.tokenizer.decode(ids) };
    state.conversations.record(prompt, call.reply, record);
  }
}

/** Tokens of the prompt that such a request would have. Throws ApiError 404 if the model is not served. */
export async function countPromptTokens(
  lookup: ModelLookup,
  {
    model,
    prompt,
    rolloutId,
    keyId,
  }: Pick<GenerationRequest, 'model' | 'rolloutId' | 'keyId'> & {
    readonly prompt: ChatPrompt;
  },
): Promise<number> {
  const { state } = await chooseModel(lookup, model);
  return state.conversations.previewPrompt({ ...prompt, rolloutId, keyId }).ids.length;
}

function replyForms({ model: { template } }: ModelChoice, prompt: Prompt): ReplyForms {
  const { reasoning } = template;
  return {
    toolFormat: template.toolFormat ?? genericToolFormat,
    reasoning,
    isReasoningOpen: reasoning !== null && isReasoningOpen(prompt.text, reasoning),
  };
}

/** With `tool_choice` none the tools are in the prompt, as in other turns of the conversation, and nothing is read as a call. */
function createParsing({ prompt, toolChoice }: GenerationRequest, forms: ReplyForms): ReplyParserOptions | null {
  if (prompt.type !== 'chat') return null;
  const toolNames = toolChoice === 'none' ? [] : prompt.tools.map(({ name }) => name);
  return toolNames.length === 0 && forms.reasoning === null ? null : { ...forms, toolNames };
}

/** Call once for each turn that was created, whatever became of it. */
export function endTurn({ state, request }: Turn): void {
  state.inFlight -= request.n;
}

const defaultMaxInFlight = 8192;

/** One request may have more choices than the limit, if it is alone. */
function requireRoom({ model, state }: ModelChoice, n: number, maxInFlight: number): void {
  if (state.inFlight === 0 || state.inFlight + n <= maxInFlight) return;
  const message = `model ${model.name}: at most ${maxInFlight} choices may be in flight, got ${n} beside ${state.inFlight}`;
  throw refuseBusy('too_many_requests', message, 1);
}

function createPrompt({ model, state }: ModelChoice, { prompt, rolloutId, keyId }: GenerationRequest): Prompt {
  switch (prompt.type) {
    case 'chat':
      return state.conversations.createPrompt({ ...prompt, rolloutId, keyId });
    case 'tokens':
      return { ids: checkIds(prompt.ids, model.config.vocabSize, 'prompt'), origin: 'started', key: '', text: '' };
    case 'text':
      return { ids: model.tokenizer.encode(prompt.text), origin: 'started', key: '', text: prompt.text };
  }
}

function checkIds(ids: readonly number[], vocabSize: number, field: string): readonly number[] {
  const odd = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabSize));
  if (odd === undefined) return ids;
  const message = `${field}: token ids must be whole numbers from 0 to ${vocabSize - 1}, got ${odd}`;
  throw refuse(400, 'invalid_value', message, field);
}

/** Tokens that are left for the reply. */
function fitMaxTokens({ prompt, sampling }: GenerationRequest, promptTokens: number, maxPositions: number): number {
  const field = prompt.type === 'chat' ? 'messages' : 'prompt';
  if (promptTokens < 1) throw refuse(400, 'invalid_value', `${field}: must have at least one token, got none`, field);
  const left = maxPositions - promptTokens;
  if (left < 1) {
    const message = `${field}: prompt and reply must fit in the context of ${maxPositions} tokens, got ${promptTokens} prompt tokens`;
    throw refuse(400, 'context_length_exceeded', message, field);
  }
  return Math.min(sampling.maxTokens ?? left, left);
}

/** Events of choice `index`. Every choice has a seed of its own, whatever `n` is. */
export function sampleChoice(
  turn: Turn,
  index: number,
  isStreaming: boolean,
  signal: AbortSignal,
): AsyncIterable<SampleEvent> {
  const { prompt, policyStep } = turn;
  const { promptLogprobs } = turn.request;
  return turn.model.engine.doSample({
    promptIds: prompt.ids,
    policyStep,
    isStreaming,
    signal,
    // Of the prompt, which the choices share, the first one tells.
    ...(promptLogprobs !== null && index === 0 && { promptLogprobs }),
    sampling: samplingParams(turn, index),
  });
}

function samplingParams(turn: Turn, index: number): SamplingParams {
  const { sampling, topLogprobs } = turn.request;
  return {
    ...sampling,
    maxTokens: turn.maxTokens,
    seed: deriveSeed(turn.seed, 'choice', index),
    stopTokenIds: turn.endIds,
    topLogprobs: topLogprobs ?? 0,
    ...(turn.constraint !== null && { constraint: turn.constraint }),
  };
}

/** A step may be unloaded between the look-up and the engine's admission: then the answer is 404, not the engine's error. */
export async function explainFailure(turn: Turn, error: unknown): Promise<unknown> {
  const isExplained = turn.policyStep === null || !(error instanceof DataError || error instanceof EngineError);
  if (isExplained) return error;
  try {
    await requireStep(turn.model, turn.policyStep);
  } catch (reason) {
    if (reason instanceof ApiError) return reason;
  }
  return error;
}
