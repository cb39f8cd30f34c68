/** OpenAI's agents over Responses (their default) and chat completions, with own tools and those of MCP servers, by stdio and HTTP. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import {
  Agent,
  MCPServerStdio,
  MCPServerStreamableHttp,
  OpenAIProvider,
  Runner,
  setTracingDisabled,
  tool,
} from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';
import { startHttpServer } from './mcp-server.mjs';
import { answer, baseURL, lookUp, question } from './shared.mjs';

setTracingDisabled(true);
const createRunner = (rollout, useResponses) => {
  const openAIClient = new OpenAI({ baseURL: baseURL(rollout), apiKey: 'none', maxRetries: 0 });
  return new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses }), tracingDisabled: true });
};
const instructions = 'Be brief.';
const weather = tool({
  name: 'weather',
  description: 'Weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => lookUp(city),
});

for (const useResponses of [true, false]) {
  const runner = createRunner(`agents-${useResponses ? 'responses' : 'chat'}`, useResponses);
  const agent = new Agent({ name: 'forecaster', instructions, model: 'agent', tools: [weather] });
  assert.equal((await runner.run(agent, question)).finalOutput, answer);
  const streamed = await runner.run(agent, question, { stream: true });
  for await (const _ of streamed);
  await streamed.completed;
  assert.equal(streamed.finalOutput, answer);
}

const http = await startHttpServer();
const servers = [
  new MCPServerStdio({
    name: 'stdio',
    command: process.execPath,
    args: [fileURLToPath(new URL('./mcp-server.mjs', import.meta.url)), 'stdio'],
  }),
  new MCPServerStreamableHttp({ name: 'http', url: http.url }),
];
try {
  for (const server of servers) {
    await server.connect();
    try {
      const agent = new Agent({ name: 'forecaster', instructions, model: 'agent', mcpServers: [server] });
      const result = await createRunner(`mcp-${server.name}`, true).run(agent, question);
      assert.equal(result.finalOutput, answer);
    } finally {
      await server.close();
    }
  }
} finally {
  http.close();
}
