/** `openai` and the AI SDK, versions 6 and 7, inside captures: clients made before, streams, agents. */
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText, ToolLoopAgent, tool } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';
import { lookUp, question, weatherSchema } from './shared.mjs';

// Before the SDK is loaded: these keep what they find.
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none', maxRetries: 0 });
const { captureAll, integration, model, server } = await import('./capture-shared.mjs');
const { art } = await integration('ai-sdk');

const weather = { name: 'weather', parameters: weatherSchema, parse: JSON.parse, function: ({ city }) => lookUp(city) };
const runTools = (stream) => () =>
  client.chat.completions
    .runTools({
      model: 'agent',
      stream,
      messages: [{ role: 'user', content: question }],
      tools: [{ type: 'function', function: weather }],
    })
    .finalContent();

const tools = {
  weather: tool({
    description: 'Weather of a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => lookUp(city),
  }),
};
const openai = createOpenAI(server);
const agents = { 'openai runTools': runTools(false), 'openai runTools, streamed': runTools(true) };
for (const [name, languageModel] of Object.entries({
  responses: openai('agent'),
  chat: openai.chat('agent'),
  art: art(model),
})) {
  const options = { model: languageModel, tools, stopWhen: stepCountIs(3), maxRetries: 0 };
  agents[`generateText, ${name}`] = async () => (await generateText({ ...options, prompt: question })).text;
  agents[`streamText, ${name}`] = async () => await streamText({ ...options, prompt: question }).text;
  agents[`ToolLoopAgent, ${name}`] = async () => (await new ToolLoopAgent(options).generate({ prompt: question })).text;
}
await captureAll(agents);
