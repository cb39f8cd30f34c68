/** Mastra's agents inside captures: whole and streamed. */
import { Agent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { z } from 'zod';
import { captureAll, integration, model } from './capture-shared.mjs';
import { lookUp, question } from './shared.mjs';

const { mastraModel } = await integration('mastra');
const weather = createTool({
  id: 'weather',
  description: 'Weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => lookUp(city),
});
const agent = new Agent({
  id: 'forecaster',
  name: 'forecaster',
  instructions: 'Be brief.',
  model: mastraModel(model),
  tools: { weather },
});
await captureAll({
  generate: async () => (await agent.generate(question)).text,
  stream: async () => await (await agent.stream(question)).text,
});
