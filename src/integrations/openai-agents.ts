/**
 * Entry `agent-reinforcement-trainer/openai-agents`: a model provider for OpenAI's agents SDK. Layer 6.
 * Without importing it: the caller gives the class `OpenAIProvider` of the version that is installed.
 */
import { refuseUnknownKeys } from '../core/options.ts';
import type { ServedModel, ServedModelOptions } from './served-model.ts';

export type { ServedModel, ServedModelOptions } from './served-model.ts';

/** As `ModelProvider` of `@openai/agents` has it; `M` is its `Model`. */
export interface AgentsModelProvider<M> {
  getModel(modelName?: string): Promise<M> | M;
}

export type AgentsProviderClass<M> = new (options: {
  readonly apiKey: string;
  readonly baseURL: string;
  readonly useResponses: boolean;
}) => AgentsModelProvider<M>;

export interface ModelProviderOptions<M> extends ServedModelOptions {
  /** The class of `@openai/agents`. */
  readonly OpenAIProvider: AgentsProviderClass<M>;
  /** The Responses API (default) or chat completions. */
  readonly useResponses?: boolean;
}

/**
 * What `new Runner({ modelProvider, model: model.getInferenceName() })` takes. Name the model, there or at each agent: an agent without one
 * asks for what only OpenAI's own default model has, which the server refuses by name. Throws ConfigError for a model that is not registered.
 */
export function createModelProvider<M>(model: ServedModel, options: ModelProviderOptions<M>): AgentsModelProvider<M> {
  refuseUnknownKeys('createModelProvider', options, ['OpenAIProvider', 'step', 'useResponses']);
  const { OpenAIProvider, step, useResponses = true } = options;
  const { baseURL, apiKey } = model.endpoint();
  const provider = new OpenAIProvider({ baseURL, apiKey, useResponses });
  const own = model.getInferenceName(step);
  return { getModel: (name) => provider.getModel(name || own) };
}
