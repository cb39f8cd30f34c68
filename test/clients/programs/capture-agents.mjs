/** LangChain, LangGraph, OpenAI's agents and Anthropic's client inside captures. */
import Anthropic from '@anthropic-ai/sdk';
import { tool as langChainTool } from '@langchain/core/tools';
import { createReactAgent } from '@langchain/langgraph/prebuilt';
import { ChatOpenAI } from '@langchain/openai';
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from '@openai/agents';
import { createAgent } from 'langchain';
import { z } from 'zod';
import { captureAll, integration, model, server } from './capture-shared.mjs';
import { lookUp, question, root, weatherSchema } from './shared.mjs';

setTracingDisabled(true);
const { createModelProvider } = await integration('openai-agents');
const parameters = z.object({ city: z.string() });

const langChainWeather = langChainTool(async ({ city }) => lookUp(city), {
  name: 'weather',
  description: 'Weather of a city',
  schema: parameters,
});
const llm = new ChatOpenAI({
  model: 'agent',
  apiKey: 'none',
  maxRetries: 0,
  configuration: { baseURL: server.baseURL },
});
const chains = {
  createAgent: createAgent({ model: llm, tools: [langChainWeather] }),
  createReactAgent: createReactAgent({ llm, tools: [langChainWeather] }),
};
const agents = {};
for (const [name, chain] of Object.entries(chains)) {
  const input = { messages: [{ role: 'user', content: question }] };
  agents[name] = async () => (await chain.invoke(input)).messages.at(-1).content;
}

const weather = tool({
  name: 'weather',
  description: 'Weather of a city',
  parameters,
  execute: async ({ city }) => lookUp(city),
});
for (const useResponses of [true, false]) {
  const modelProvider = createModelProvider(model, { OpenAIProvider, useResponses });
  const runner = new Runner({ modelProvider, model: model.getInferenceName(), tracingDisabled: true });
  const agent = new Agent({ name: 'forecaster', instructions: 'Be brief.', tools: [weather] });
  agents[`agents, ${useResponses}`] = async () => (await runner.run(agent, question)).finalOutput;
}

const anthropic = new Anthropic({ baseURL: root, apiKey: 'none', maxRetries: 0 });
agents.anthropic = async () => {
  const messages = [{ role: 'user', content: question }];
  const tools = [{ name: 'weather', description: 'Weather of a city', input_schema: weatherSchema }];
  const ask = () => anthropic.messages.create({ model: 'agent', max_tokens: 200, tools, messages });
  const { content } = await ask();
  const use = content.find(({ type }) => type === 'tool_use');
  const result = { type: 'tool_result', tool_use_id: use.id, content: lookUp(use.input.city) };
  messages.push({ role: 'assistant', content }, { role: 'user', content: [result] });
  return (await ask()).content[0].text;
};
await captureAll(agents);
