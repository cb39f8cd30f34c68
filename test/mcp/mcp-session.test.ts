/** Sessions and rollouts against servers of the official SDK, over standard streams and HTTP. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ConfigError } from '../../src/index.ts';
import { connectMcp, type McpServer } from '../../src/mcp/index.ts';
import { root } from '../source-imports.ts';

const shop = join(root, 'dist', 'examples', 'mcp', 'server.js');
let http: ChildProcess;
let url = '';

beforeAll(async () => {
  http = spawn(process.execPath, [shop, '0'], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = await once(http.stdout!, 'data');
  url = String(line).trim();
});
afterAll(() => void http.kill());

describe.each<[string, () => McpServer]>([
  ['standard streams', () => ({ command: process.execPath, args: [shop] })],
  ['HTTP', () => ({ url })],
])('over %s', (_name, server) => {
  test('lists tools and resources, calls and reads', async () => {
    await using session = await connectMcp(server());
    expect(session.tools.map(({ name }) => name)).toEqual(['stock', 'price', 'buy']);
    expect(session.tools[0]).toMatchObject({
      description: 'How many of a product there are.',
      inputSchema: { type: 'object', properties: { product: { enum: ['apple', 'bread', 'cheese'] } } },
    });
    expect(session.resources).toEqual([
      { uri: 'shop://products', name: 'products', description: 'All products', mimeType: 'text/plain' },
    ]);
    expect(await session.callTool('price', { product: 'bread' })).toEqual({ text: '2.25', isError: false });
    expect(await session.callTool('buy', { product: 'cheese' })).toEqual({ text: 'cheese is sold out', isError: true });
    expect(await session.readResource('shop://products')).toBe('apple\nbread\ncheese');
    const wrong = await session.callTool('price', { product: 'gold' });
    expect(wrong).toMatchObject({ isError: true, text: expect.stringContaining('product') });
  });

  test('many calls at once do not mix', async () => {
    await using session = await connectMcp(server());
    const names = ['apple', 'bread', 'cheese'];
    const calls = Array.from({ length: 60 }, (_, i) => session.callTool('price', { product: names[i % 3] }));
    const prices = (await Promise.all(calls)).map(({ text }) => text);
    expect(prices).toEqual(Array.from({ length: 60 }, (_, i) => ['0.5', '2.25', '7'][i % 3]));
  });
});

describe('what cannot be reached', () => {
  test('a program that is not there, one that says nothing, and one that ends', async () => {
    await expect(connectMcp({ command: 'no-such-program-here' })).rejects.toThrow(
      /^MCP server no-such-program-here: connection: .*ENOENT/,
    );
    const silent = { command: process.execPath, args: ['-e', 'setTimeout(() => {}, 60_000)'] };
    await expect(connectMcp(silent, { timeoutMs: 300 })).rejects.toThrow(/: connection: nothing within 300 ms$/);
    const ends = { command: process.execPath, args: ['-e', ''] };
    await expect(connectMcp(ends)).rejects.toThrow(/: connection: .*closed/i);
  });

  test('an address without a server, and a server that is none of MCP', async () => {
    await expect(connectMcp({ url: 'http://127.0.0.1:9/mcp' })).rejects.toThrow(
      /^MCP server 127.0.0.1:9: connection: /,
    );
    const other = createServer((_request, response) => response.writeHead(404).end('no')).listen(0, '127.0.0.1');
    await once(other, 'listening');
    const { port } = other.address() as AddressInfo;
    await expect(connectMcp({ url: `http://127.0.0.1:${port}/mcp` })).rejects.toThrow(/: connection: .*404/);
    other.close();
    await expect(connectMcp({ url: 'shop' })).rejects.toThrow(ConfigError);
    await expect(connectMcp({ uri: 'x' } as unknown as McpServer)).rejects.toThrow(
      /MCP server: known options are url, headers; got uri/,
    );
  });

  test('a caller who gives up, before and in a call', async () => {
    const signal = AbortSignal.abort();
    await expect(connectMcp({ url }, { signal })).rejects.toThrow(/: connection: aborted by the caller$/);
    await using session = await connectMcp({ url });
    await expect(session.callTool('price', { product: 'bread' }, { signal })).rejects.toThrow(
      /: call of price: aborted by the caller$/,
    );
  });
});
