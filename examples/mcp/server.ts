/**
 * An MCP server of the official SDK to try MCP-RL with: the stock of a small shop. Over standard streams, or with a port as its argument
 * over HTTP on this computer (`/mcp`). Run: `node dist/examples/mcp/server.js [PORT]`.
 */
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import * as z from 'zod';

const stock: Readonly<Record<string, { readonly count: number; readonly price: number }>> = {
  apple: { count: 12, price: 0.5 },
  bread: { count: 3, price: 2.25 },
  cheese: { count: 0, price: 7 },
};
const products = ['apple', 'bread', 'cheese'] as const;

function createShop(): McpServer {
  const server = new McpServer({ name: 'shop', version: '1.0.0' });
  const product = z.enum(products);
  const text = (value: string) => ({ content: [{ type: 'text' as const, text: value }] });
  server.registerTool('stock', { description: 'How many of a product there are.', inputSchema: { product } }, (args) =>
    text(String(stock[args.product]?.count)),
  );
  server.registerTool('price', { description: 'Price of one piece, in euros.', inputSchema: { product } }, (args) =>
    text(String(stock[args.product]?.price)),
  );
  server.registerTool('buy', { description: 'Buys one piece.', inputSchema: { product } }, (args) => {
    if (stock[args.product]?.count === 0) return { ...text(`${args.product} is sold out`), isError: true };
    return text(`bought one ${args.product}`);
  });
  server.registerResource(
    'products',
    'shop://products',
    { description: 'All products', mimeType: 'text/plain' },
    (uri) => ({
      contents: [{ uri: uri.href, mimeType: 'text/plain', text: products.join('\n') }],
    }),
  );
  return server;
}

const [port] = process.argv.slice(2);
if (port === undefined) await createShop().connect(new StdioServerTransport());
else {
  const server = createServer(async (request, response) => {
    // One server for each request: nothing is kept between them.
    const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true });
    response.on('close', () => void transport.close());
    await createShop().connect(transport as Transport);
    await transport.handleRequest(request, response);
  });
  server.listen(Number(port), '127.0.0.1', () => {
    const address = server.address();
    console.log(`http://127.0.0.1:${typeof address === 'object' ? address?.port : port}/mcp`);
  });
}
