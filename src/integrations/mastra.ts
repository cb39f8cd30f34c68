/** Entry `agent-reinforcement-trainer/mastra`: a model as Mastra's agents take it. Layer 6. Without importing Mastra. */
import { refuseUnknownKeys } from '../core/options.ts';
import type { ServedModel, ServedModelOptions } from './served-model.ts';

export type { ServedModel, ServedModelOptions } from './served-model.ts';

/** Mastra's `OpenAICompatibleConfig`. */
export interface MastraModelConfig {
  readonly providerId: string;
  readonly modelId: string;
  readonly url: string;
  readonly apiKey: string;
}

/** What `new Agent({ model })` of `@mastra/core` takes. Throws ConfigError for a model that is not registered. */
export function mastraModel(model: ServedModel, options: ServedModelOptions = {}): MastraModelConfig {
  refuseUnknownKeys('mastraModel', options, ['step']);
  const { baseURL, apiKey } = model.endpoint();
  return { providerId: 'art', modelId: model.getInferenceName(options.step), url: baseURL, apiKey };
}
