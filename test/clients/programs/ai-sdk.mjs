/** Vercel's AI SDK, versions 6 and 7: text with tools, streams, objects; over Responses (its default) and chat completions. */
import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { answer, baseURL, lookUp, question } from './shared.mjs';

const openai = createOpenAI({ baseURL: baseURL('ai-openai'), apiKey: 'none' });
const compatible = createOpenAICompatible({
  name: 'art',
  baseURL: baseURL('ai-compatible'),
  supportsStructuredOutputs: true,
});
const models = [openai('agent'), openai.chat('agent'), compatible('agent')];
const tools = {
  weather: tool({
    description: 'Weather of a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => lookUp(city),
  }),
};

for (const model of models) {
  const options = { model, tools, stopWhen: stepCountIs(3), maxRetries: 0, prompt: question };
  const whole = await generateText(options);
  assert.equal(whole.text, answer);
  assert.equal(whole.steps.length, 2);
  assert.deepEqual(whole.steps[0].toolCalls[0].input, { city: 'Paris' });

  const streamed = streamText({
    ...options,
    onError: ({ error }) => {
      throw error;
    },
  });
  let text = '';
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, answer);

  const schema = z.object({ city: z.string(), degrees: z.number() });
  const { object } = await generateObject({ model, schema, maxRetries: 0, prompt: 'Where is it warm?' });
  assert.deepEqual(object, { city: 'Paris', degrees: 21 });
}
