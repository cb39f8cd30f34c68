/** The environment of count_env.py in Node: OpenEnv's messages over a WebSocket, and the same over HTTP for one episode; it can misbehave. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { WebSocketServer } from 'ws';

export interface CountingServer {
  readonly url: string;
  readonly sessions: () => number;
  readonly close: () => Promise<void>;
}

/** What the next step does instead of its duty, by the number that is added. */
const faults: Readonly<Record<number, string>> = { 90: 'silence', 91: 'cut', 92: 'noise', 93: 'shape', 94: 'state' };

function createCounter() {
  const target = 3;
  let count = 0;
  const observe = (reward: number | null) => ({ observation: { count, target }, reward, done: count >= target });
  return {
    reset: ({ seed = 0 }: { seed?: number }) => {
      count = seed;
      return observe(null);
    },
    step: ({ add }: { add: number }) => {
      if (add < 0) throw new Error('add must not be negative');
      count += add;
      return observe(count === target ? 1 : 0.25);
    },
  };
}

export async function startCountingServer(): Promise<CountingServer> {
  const shared = createCounter();
  const http: Server = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request) text += String(chunk);
    const body = JSON.parse(text);
    try {
      const result = request.url === '/reset' ? shared.reset(body) : shared.step(body.action);
      response.setHeader('content-type', 'application/json').end(JSON.stringify(result));
    } catch (error) {
      response.writeHead(422).end(String(error));
    }
  });
  const sockets = new WebSocketServer({ server: http, path: '/ws' });
  sockets.on('connection', (socket) => {
    const counter = createCounter();
    socket.on('message', (raw) => {
      const { type, data } = JSON.parse(String(raw));
      const send = (answer: string, content: object): void =>
        socket.send(JSON.stringify({ type: answer, data: content }));
      if (type === 'close') return socket.close();
      if (type === 'state') return send('state', { step_count: 0 });
      if (type === 'reset') return send('observation', counter.reset(data));
      switch (faults[data.add]) {
        case 'silence':
          return;
        case 'cut':
          return socket.terminate();
        case 'noise':
          return socket.send('{"type":');
        case 'shape':
          return send('observation', { observation: 4 });
        case 'state':
          return send('state', {});
      }
      try {
        send('observation', counter.step(data));
      } catch (error) {
        send('error', { message: (error as Error).message, code: 'EXECUTION_ERROR' });
      }
    });
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}`,
    sessions: () => sockets.clients.size,
    close: async () => {
      for (const client of sockets.clients) client.terminate();
      http.closeAllConnections();
      await new Promise((resolve) => http.close(resolve));
    },
  };
}
