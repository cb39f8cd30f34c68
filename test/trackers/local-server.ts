/** A local server for trackers: it writes down every request, answers by a function, and misbehaves on demand. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gunzipSync } from 'node:zlib';

export interface ReceivedRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** JSON where it is that, else text. */
  readonly body: unknown;
  readonly bytes: Buffer;
}

export interface Answer {
  readonly status?: number;
  readonly body?: unknown;
}

export type Fault = 'hang' | 'cut' | 'nonsense' | 'redirect' | number;

export interface LocalServer extends AsyncDisposable {
  readonly url: string;
  readonly requests: ReceivedRequest[];
  /** What every request meets, in place of an answer; undefined: none. A number is a status. */
  fault: Fault | undefined;
}

export async function startLocalServer(answer: (request: ReceivedRequest) => Answer): Promise<LocalServer> {
  const requests: ReceivedRequest[] = [];
  const server = createServer(async (incoming, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const sent = Buffer.concat(chunks);
    const bytes = incoming.headers['content-encoding'] === 'gzip' ? gunzipSync(sent) : sent;
    const request = {
      method: incoming.method ?? '',
      path: incoming.url ?? '',
      headers: incoming.headers,
      body: parse(bytes.toString()),
      bytes,
    };
    requests.push(request);
    const { fault } = local;
    if (fault === 'hang') return;
    if (fault === 'cut') return void incoming.socket.destroy();
    if (fault === 'redirect') return void response.writeHead(302, { location: 'http://127.0.0.1:1/' }).end();
    if (fault === 'nonsense') return void response.end('<html>not what you asked for</html>');
    if (typeof fault === 'number') {
      // Some servers quote the key that they refuse.
      return void response.writeHead(fault).end(`refused: ${JSON.stringify(incoming.headers)}`);
    }
    const { status = 200, body = {} } = answer(request);
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const local: LocalServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    fault: undefined,
    [Symbol.asyncDispose]: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
  return local;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
