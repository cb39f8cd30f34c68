/**
 * openai-agents-js #472: users asked for training of agents of OpenAI's TypeScript SDK. Here a provider for its Runner is one call, and
 * runs are captured as they are. The SDK itself runs in `npm run test:clients`; this has its loop: a provider, a model, Responses.
 */
import OpenAI from 'openai';
import { expect, test } from 'vitest';
import { captureTrajectory } from '../../src/index.ts';
import { createModelProvider } from '../../src/integrations/openai-agents.ts';
import { startRepeatingServer } from '../repeating-agent.ts';

class OpenAIProvider {
  readonly #client: OpenAI;
  constructor({ apiKey, baseURL }: { readonly apiKey: string; readonly baseURL: string }) {
    this.#client = new OpenAI({ apiKey, baseURL });
  }
  getModel(model?: string) {
    if (model === undefined) throw new Error('a model needs a name');
    return { ask: (input: string) => this.#client.responses.create({ model, input, instructions: 'Be brief.' }) };
  }
}

test('a run over the Responses API becomes a trajectory', async () => {
  await using server = await startRepeatingServer();
  const provider = createModelProvider(server.model, { OpenAIProvider });
  const { trajectory, output } = await captureTrajectory(async () => (await provider.getModel()).ask('Hi'));
  expect(output.output_text).toBe('You said: Hi');
  expect(trajectory.messages().map(({ role }) => role)).toEqual(['system', 'user', 'assistant']);
  expect(trajectory.allChoices()).toHaveLength(1);
});
