/** The server process of a load run: a real server over the real engine, whose share of each request it writes down. */
import { createEmbeddedEngine } from '../../src/engines/embedded/engine.ts';
import type { Engine, SampleEvent, SampleRequest } from '../../src/engines/engine.ts';
import { RemoteBackend, TrainableModel } from '../../src/index.ts';
import { createArtServer } from '../../src/server/index.ts';
import type { AskTimes, FromServer } from './protocol.ts';

const [root, baseModel] = process.argv.slice(2) as [string, string];
let times: [number, number][] = [];

async function* timed(engine: Engine, request: SampleRequest): AsyncGenerator<SampleEvent> {
  const startedAt = performance.now();
  for await (const event of engine.doSample(request)) {
    if (event.type === 'finish') times.push([request.sampling.seed, performance.now() - startedAt]);
    yield event;
  }
}

const tell = (message: FromServer): void => void process.send?.(message);

const server = await createArtServer({
  root,
  createEngine: async (options) => {
    const engine = await createEmbeddedEngine(options);
    return { ...engine, doSample: (request) => timed(engine, request) };
  },
});
await new TrainableModel({ name: 'load', project: 'load', baseModel }).register(
  new RemoteBackend({ baseURL: server.url }),
);
process.on('message', (_: AskTimes) => {
  tell({ kind: 'times', milliseconds: times });
  times = [];
});
// The driver's end, however it comes, is this process's end.
process.on('disconnect', () => void server.close().finally(() => process.exit(0)));
tell({ kind: 'ready', url: server.url });
