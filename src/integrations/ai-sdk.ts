/**
 * Entry `agent-reinforcement-trainer/ai-sdk`: a model as a provider of Vercel's AI SDK (6 and 7). Layer 6.
 * Of `@ai-sdk/openai-compatible`, an optional peer: version 2 gives models of specification v3, which both majors take. Token ids need not
 * come back: the server keeps them.
 */
import { createOpenAICompatible, type OpenAICompatibleProvider } from '@ai-sdk/openai-compatible';
import { refuseUnknownKeys } from '../core/options.ts';
import { captureFetch } from '../sdk/capture-scope.ts';
import type { ServedModel, ServedModelOptions } from './served-model.ts';

export type { ServedModel, ServedModelOptions } from './served-model.ts';

/** What `generateText`, `streamText` and agents take as `model`. */
export type ArtLanguageModel = ReturnType<OpenAICompatibleProvider['chatModel']>;

export interface ArtProvider {
  /** Default: the model that the provider was made for. */
  (modelId?: string): ArtLanguageModel;
  languageModel(modelId: string): ArtLanguageModel;
}

export interface ArtProviderInit {
  readonly model: ServedModel;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A provider: `createArt({ model })()` is the model. Throws ConfigError for one that is not registered. */
export function createArt(init: ArtProviderInit): ArtProvider {
  refuseUnknownKeys('createArt', init, ['model', 'headers']);
  const { baseURL, apiKey } = init.model.endpoint();
  const compatible = createOpenAICompatible({
    name: 'art',
    baseURL,
    apiKey,
    headers: { ...init.headers },
    includeUsage: true,
    supportsStructuredOutputs: true,
    fetch: captureFetch,
  });
  const languageModel = (modelId: string = init.model.getInferenceName()): ArtLanguageModel =>
    compatible.chatModel(modelId);
  return Object.assign(languageModel, { languageModel });
}

/** The model itself: `generateText({ model: art(model), prompt })`. */
export function art(model: ServedModel, options: ServedModelOptions = {}): ArtLanguageModel {
  refuseUnknownKeys('art', options, ['step']);
  return createArt({ model })(model.getInferenceName(options.step));
}
