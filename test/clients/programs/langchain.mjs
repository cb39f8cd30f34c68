/** LangChain's `createAgent` and LangGraph's `createReactAgent`, whole and streamed. */
import assert from 'node:assert/strict';
import { tool } from '@langchain/core/tools';
import { createReactAgent } from '@langchain/langgraph/prebuilt';
import { ChatOpenAI } from '@langchain/openai';
import { createAgent } from 'langchain';
import { z } from 'zod';
import { answer, baseURL, lookUp, question } from './shared.mjs';

const weather = tool(async ({ city }) => lookUp(city), {
  name: 'weather',
  description: 'Weather of a city',
  schema: z.object({ city: z.string() }),
});
const createModel = (rollout) =>
  new ChatOpenAI({ model: 'agent', apiKey: 'none', maxRetries: 0, configuration: { baseURL: baseURL(rollout) } });
const agents = [
  createAgent({ model: createModel('langchain'), tools: [weather] }),
  createReactAgent({ llm: createModel('langgraph'), tools: [weather] }),
];
const input = { messages: [{ role: 'user', content: question }] };
for (const agent of agents) {
  const { messages } = await agent.invoke(input);
  assert.equal(messages.at(-1).content, answer);
  assert.equal(messages.length, 4);
  let last = null;
  for await (const state of await agent.stream(input, { streamMode: 'values' })) last = state;
  assert.equal(last.messages.at(-1).content, answer);
}
const structured = createModel('langchain-object').withStructuredOutput(
  z.object({ city: z.string(), degrees: z.number() }),
  { method: 'jsonSchema' },
);
assert.deepEqual(await structured.invoke('Where is it warm?'), { city: 'Paris', degrees: 21 });
