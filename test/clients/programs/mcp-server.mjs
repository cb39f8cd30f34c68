/** A real MCP server with one tool, over stdio (`node mcp-server.mjs stdio`) or streamable HTTP. */
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

function createWeatherServer() {
  const server = new McpServer({ name: 'weather', version: '1.0.0' });
  server.registerTool(
    'weather',
    { description: 'Weather of a city', inputSchema: { city: z.string() } },
    async ({ city }) => ({ content: [{ type: 'text', text: `sunny in ${city}` }] }),
  );
  return server;
}

/** Without sessions: each request has a server of its own. */
export async function startHttpServer() {
  const server = createServer(async (request, response) => {
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    await createWeatherServer().connect(transport);
    await transport.handleRequest(request, response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${server.address().port}/mcp`, close };
}

if (process.argv[2] === 'stdio') await createWeatherServer().connect(new StdioServerTransport());
