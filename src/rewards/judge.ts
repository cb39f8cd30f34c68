/**
 * A judge: whom RULER asks. Layer 5. A model of a provider, of any endpoint that speaks OpenAI's chat completions or Anthropic's messages,
 * or one that our own server serves. What the endpoint does not take (a schema, a temperature) is found out once and then left out.
 */
import OpenAI from 'openai';
import pLimit, { type LimitFunction } from 'p-limit';
import { ApiError, ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import type { TokenPrices } from '../core/token-cost.ts';
import { runOutsideCapture } from '../sdk/capture-scope.ts';
import { withDeadline } from '../sdk/deadline.ts';
import { type ChatModel, TrainableModel } from '../sdk/model.ts';
import { findProvider, type JudgeEndpoint, type JudgeProtocol } from './judge-providers.ts';
import {
  askChatCompletions,
  askMessages,
  type JudgeReply,
  type JudgeRequest,
  type RequestForm,
} from './judge-transport.ts';

export interface AskOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
}

/** Whom RULER asks. `createJudge` makes one; an object of your own with these methods works as well. */
export interface Judge {
  /** For errors and reports. */
  readonly name: string;
  readonly prices: TokenPrices | null;
  /** What the cache tells judges apart by: endpoint, model, and for a model in training its step. Null: nothing is cached. */
  identity(): Promise<string | null>;
  /** Sends one request. Throws ApiError with the status, DataError for an answer outside the protocol, AbortedError at the limit. */
  ask(request: JudgeRequest, options: AskOptions): Promise<JudgeReply>;
}

/** An endpoint that has no name of its own. */
export interface JudgeInit {
  readonly model: string;
  /** As in `http://127.0.0.1:8000/v1`; of Anthropic's protocol without `/v1`. Not with `client`. */
  readonly baseURL?: string;
  readonly apiKey?: string;
  /** OpenAI's client or one derived from it, such as that for Azure. */
  readonly client?: OpenAI;
  /** Default `chat-completions`. */
  readonly protocol?: JudgeProtocol;
}

export interface JudgeOptions {
  /** Money for a million tokens: your own, as none are built in. */
  readonly prices?: TokenPrices;
  /** Requests at once; default 16. */
  readonly maxConcurrency?: number;
}

/** `provider/model`, a model of ours or of any OpenAI-compatible endpoint, the parts of an endpoint, or a judge. */
export type JudgeModel = string | ChatModel | JudgeInit | Judge;

type Send = (request: JudgeRequest, form: RequestForm, signal: AbortSignal) => Promise<JudgeReply>;

/**
 * A judge that remembers what its endpoint takes and holds back requests beyond `maxConcurrency`: make one for all groups.
 * Throws ConfigError for an unknown provider or a missing key.
 */
export function createJudge(judgeModel: Exclude<JudgeModel, Judge>, options: JudgeOptions = {}): Judge {
  refuseUnknownKeys('createJudge', options, ['prices', 'maxConcurrency']);
  const { prices = null, maxConcurrency = 16 } = options;
  requireIntegers('createJudge', { maxConcurrency }, 1);
  const limit = pLimit(maxConcurrency);
  if (typeof judgeModel === 'string') {
    const { endpoint, model } = findProvider(judgeModel);
    // The newest policy of a model of ours is another one after each step.
    const isMoving = judgeModel.startsWith('art/') && !model.includes('@');
    const identity = isMoving ? null : `${endpoint.baseURL} ${model}`;
    return new EndpointJudge(judgeModel, prices, limit, identity, sendTo(endpoint, model));
  }
  if ('openaiClient' in judgeModel) return judgeOfModel(judgeModel, prices, limit);
  return judgeOfInit(judgeModel, prices, limit);
}

/** The judge itself, or one made of what names it. */
export function resolveJudge(judgeModel: JudgeModel): Judge {
  return typeof judgeModel === 'object' && 'ask' in judgeModel ? judgeModel : createJudge(judgeModel);
}

function judgeOfModel(model: ChatModel, prices: TokenPrices | null, limit: LimitFunction): Judge {
  const client = model.openaiClient();
  const send: Send = (request, form, signal) =>
    askChatCompletions(client, model.getInferenceName(), request, form, signal);
  // A model in training judges differently after each step.
  const identity = async (): Promise<string> => {
    const step = model instanceof TrainableModel ? `@${await model.getStep()}` : '';
    return `${client.baseURL} ${model.getInferenceName()}${step}`;
  };
  return new EndpointJudge(model.name, prices, limit, identity, send);
}

function judgeOfInit(init: JudgeInit, prices: TokenPrices | null, limit: LimitFunction): Judge {
  refuseUnknownKeys('judgeModel', init, ['model', 'baseURL', 'apiKey', 'client', 'protocol']);
  const { model, baseURL, apiKey, client, protocol = 'chat-completions' } = init;
  if (client !== undefined) {
    if (baseURL !== undefined || apiKey !== undefined || protocol !== 'chat-completions') {
      throw new ConfigError('judgeModel: client must stand without baseURL, apiKey and protocol, got both');
    }
    const send: Send = (request, form, signal) => askChatCompletions(client, model, request, form, signal);
    return new EndpointJudge(model, prices, limit, `${client.baseURL} ${model}`, send);
  }
  if (baseURL === undefined || !URL.canParse(baseURL)) {
    throw new ConfigError(`judgeModel: baseURL must be a URL like http://host:8000/v1, got ${baseURL}`);
  }
  const endpoint = { baseURL: baseURL.replace(/\/+$/, ''), apiKey: apiKey ?? 'none', protocol };
  return new EndpointJudge(model, prices, limit, `${endpoint.baseURL} ${model}`, sendTo(endpoint, model));
}

function sendTo(endpoint: JudgeEndpoint, model: string): Send {
  if (endpoint.protocol === 'messages') {
    return (request, form, signal) => askMessages(endpoint, model, request, form, signal);
  }
  const client = new OpenAI({ baseURL: endpoint.baseURL, apiKey: endpoint.apiKey });
  return (request, form, signal) => askChatCompletions(client, model, request, form, signal);
}

class EndpointJudge implements Judge {
  readonly name: string;
  readonly prices: TokenPrices | null;
  readonly #limit: LimitFunction;
  readonly #identity: string | null | (() => Promise<string>);
  readonly #send: Send;
  /** What the endpoint is known to take. */
  #form: RequestForm = { structure: 'schema', sendsTemperature: true, tokenField: 'max_tokens' };

  constructor(
    name: string,
    prices: TokenPrices | null,
    limit: LimitFunction,
    identity: string | null | (() => Promise<string>),
    send: Send,
  ) {
    this.name = name;
    this.prices = prices;
    this.#limit = limit;
    this.#identity = identity;
    this.#send = send;
  }

  async identity(): Promise<string | null> {
    return typeof this.#identity === 'function' ? this.#identity() : this.#identity;
  }

  ask(request: JudgeRequest, { timeoutMs, signal }: AskOptions): Promise<JudgeReply> {
    return this.#limit(() =>
      withDeadline({ what: `judge ${this.name}`, timeoutMs, signal }, (deadline) => this.#askInForm(request, deadline)),
    );
  }

  /** At most five requests: each refusal takes one thing away, and what worked is kept. */
  async #askInForm(request: JudgeRequest, signal: AbortSignal): Promise<JudgeReply> {
    let form = this.#form;
    while (true) {
      try {
        const sent = form;
        const reply = await runOutsideCapture(() => this.#send(request, sent, signal));
        this.#form = form;
        return reply;
      } catch (error) {
        const next = error instanceof ApiError && isRefusedRequest(error) ? simplify(form, error.message) : null;
        if (next === null) throw error;
        form = next;
      }
    }
  }
}

function isRefusedRequest({ status }: ApiError): boolean {
  return status === 400 || status === 422;
}

/** The next simpler form after a refusal; null if there is none. */
function simplify(form: RequestForm, message: string): RequestForm | null {
  if (form.tokenField === 'max_tokens' && message.includes('max_completion_tokens')) {
    return { ...form, tokenField: 'max_completion_tokens' };
  }
  if (form.sendsTemperature && message.includes('temperature')) return { ...form, sendsTemperature: false };
  if (form.structure === 'schema') return { ...form, structure: 'json' };
  return form.structure === 'json' ? { ...form, structure: 'none' } : null;
}
