/** Pain 10: an outage of the backend came through as a raw 500 or 524. Here it is a typed error that says what was asked, where, and what came. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { ApiError, RemoteBackend, TrainableModel } from '../../src/index.ts';

let server: Server | undefined;
afterEach(() => server?.close());

const model = new TrainableModel({ name: 'agent', project: 'p', baseModel: './base' });

async function failWith(status: number, body: string): Promise<RemoteBackend> {
  server = createServer((_request, response) => response.writeHead(status, { connection: 'close' }).end(body));
  await new Promise<void>((resolve) => server?.listen(0, '127.0.0.1', resolve));
  return new RemoteBackend({ baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
}

test.each([
  [524, '<html>A timeout occurred</html>'],
  [500, 'workflow error'],
  [502, ''],
])('HTTP %i from a gateway', async (status, body) => {
  const backend = await failWith(status, body);
  const error = await model.register(backend).catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(ApiError);
  expect(error).toMatchObject({ status });
  expect((error as Error).message).toBe(`registration of model agent: HTTP ${status}: ${body || 'empty answer'}`);
});

test('a server that is not there is named by its address', async () => {
  const register = model.register(new RemoteBackend({ baseURL: 'http://127.0.0.1:9' }));
  await expect(register).rejects.toThrow(
    /^registration of model agent: POST http:\/\/127\.0\.0\.1:9\/api\/models could not be sent/,
  );
});
