/** From `name` or `name@step` to a served model, and what the inference routes keep per model. Layer 5. */
import { ConfigError, EngineError } from '../../core/errors.ts';
import { waitFor } from '../../core/wait.ts';
import type { EngineInfo } from '../../engines/engine.ts';
import { markIds } from '../../formats/tool-formats/tool-format.ts';
import { refuse } from '../../wire/errors.ts';
import type { WatchGeneration } from '../observe/generation-watch.ts';
import { type Conversations, createConversations } from './conversations.ts';
import type { ServedModel } from './served-model.ts';
import { genericToolFormat } from './template-input.ts';
import { createTokenTexts, type TokenTexts } from './token-texts.ts';

/** Where the inference routes find models. */
export interface ModelLookup {
  readonly models: () => Iterable<ServedModel>;
  readonly findModel: (name: string) => ServedModel | undefined;
  /** Choices of one model that may be in flight; more are refused with 429. Default 8,192. */
  readonly maxInFlight?: number;
  /** Is told how each generation goes. */
  readonly watchGeneration?: WatchGeneration;
}

/** State of the inference routes for one model; it lives and dies with the `ServedModel` object. */
export interface ModelState {
  readonly conversations: Conversations;
  readonly tokenTexts: TokenTexts;
  /** Policy steps that were loaded when the engine was last asked. */
  knownSteps: ReadonlySet<number>;
  /** Tokens whose text a parser reads, special or not. */
  readonly markIds: ReadonlySet<number>;
  /** Choices that are being sampled. */
  inFlight: number;
  /** Calls that could not be read, and were answered as text. */
  malformedToolCalls: number;
}

export interface ModelChoice {
  readonly model: ServedModel;
  readonly state: ModelState;
  /** null = the newest. */
  readonly policyStep: number | null;
}

/** How long `doInfo` may take before a route answers without it. */
const infoTimeoutMs = 2_000;

const states = new WeakMap<ServedModel, ModelState>();

/** Made with the first question; it lives and dies with the model. */
export function modelState(model: ServedModel): ModelState {
  let state = states.get(model);
  if (state === undefined) {
    const { tokenizer, template } = model;
    state = {
      conversations: createConversations(model),
      tokenTexts: createTokenTexts(tokenizer),
      markIds: markIds((text) => tokenizer.tokenId(text), template.toolFormat ?? genericToolFormat, template.reasoning),
      knownSteps: new Set(),
      inFlight: 0,
      malformedToolCalls: 0,
    };
    states.set(model, state);
  }
  return state;
}

/** Splits `name@step`. Throws ApiError 404 if the step is not an integer. */
export function parseModelName(id: string): { readonly name: string; readonly step: number | null } {
  const at = id.indexOf('@');
  if (at < 0) return { name: id, step: null };
  const digits = id.slice(at + 1);
  if (!/^\d{1,15}$/.test(digits)) {
    throw refuse(404, 'model_not_found', `model: must be name or name@step, got ${JSON.stringify(id)}`, 'model');
  }
  return { name: id.slice(0, at), step: Number(digits) };
}

/** Throws ApiError 404, naming what is served, if the model or the step is not. */
export async function chooseModel(lookup: ModelLookup, id: string): Promise<ModelChoice> {
  const { name, step } = parseModelName(id);
  const model = lookup.findModel(name);
  if (model === undefined) {
    const names = [...lookup.models()].map((served) => served.name).join(', ') || 'none';
    const message = `model: must be one that is served (${names}), got ${JSON.stringify(id)}`;
    throw refuse(404, 'model_not_found', message, 'model');
  }
  const state = modelState(model);
  if (step !== null && !state.knownSteps.has(step)) await requireStep(model, step);
  return { model, state, policyStep: step };
}

/** Asks the engine which steps are loaded. Throws ApiError 404 if `step` is not among them. */
export async function requireStep(model: ServedModel, step: number): Promise<void> {
  const { policySteps } = await readEngineInfo(model);
  if (policySteps.includes(step)) return;
  const message = `model: step must be one that is loaded (${policySteps.join(', ')}), got ${model.name}@${step}`;
  throw refuse(404, 'model_not_found', message, 'model');
}

/** The engine's info, waited for at most two seconds. Throws EngineError, which is retryable when the time is over. */
export async function readEngineInfo(model: ServedModel): Promise<EngineInfo> {
  const what = `engine of ${model.name}`;
  const info = await waitFor(model.engine.doInfo(), {
    limitMs: infoTimeoutMs,
    what,
    onLimit: () =>
      new EngineError(`${what}: must answer doInfo within ${infoTimeoutMs} ms`, { details: { isRetryable: true } }),
  });
  modelState(model).knownSteps = new Set(info.policySteps);
  return info;
}

/** Ids that end a turn: the model's own, and the end-of-turn token of its template. Throws ConfigError if there is none. */
export function endOfTurnIds(model: ServedModel): readonly number[] {
  const { eosId } = model.tokenizer;
  const ids = [...new Set([...(eosId === null ? [] : [eosId]), ...model.config.eosTokenId])];
  if (ids.length === 0) throw new ConfigError(`model ${model.name}: must have an end-of-turn token, got none`);
  return ids;
}
