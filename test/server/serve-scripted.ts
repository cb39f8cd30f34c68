/** A server on a port over a scripted engine, and OpenAI's client for it. */
import OpenAI from 'openai';
import { afterEach } from 'vitest';
import { createApp } from '../../src/server/app.ts';
import type { ModelLookup } from '../../src/server/inference/model-lookup.ts';
import { type RunningServer, startServer } from '../../src/server/listen.ts';
import { createScriptedModel, type ScriptedModel, type ScriptedModelOptions } from '../../src/server/testing-model.ts';

export interface Served {
  readonly model: ScriptedModel;
  readonly client: OpenAI;
  readonly url: string;
}

export interface ServeOptions extends ScriptedModelOptions, Pick<ModelLookup, 'maxInFlight'> {
  /** Before each token of a reply. */
  readonly delayMs?: number;
}

const servers: RunningServer[] = [];

afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.close()));
});

/** Replies in turn, each the tokens of a text; `<|im_end|>` ends one. Closed after the test. */
export async function serveScripted(texts: string | readonly string[], options: ServeOptions = {}): Promise<Served> {
  const { delayMs, maxInFlight, ...modelOptions } = options;
  const list = typeof texts === 'string' ? [texts] : texts;
  const model = await createScriptedModel(
    (tokenizer) => (_request, call) => ({
      tokenIds: tokenizer.encode(list[call % list.length] as string),
      ...(delayMs !== undefined && { delayMs }),
    }),
    modelOptions,
  );
  const app = createApp({
    models: () => [model],
    findModel: (name) => (name === model.name ? model : undefined),
    ...(maxInFlight !== undefined && { maxInFlight }),
  });
  const server = await startServer(app);
  servers.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  return { model, url: server.url, client };
}
