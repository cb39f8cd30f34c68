/** A server whose policy says back what its prompt says: an answer that belongs to another request shows at once. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { loadTokenizer } from '../../src/formats/tokenizer.ts';
import { RemoteBackend, TrainableModel } from '../../src/index.ts';
import { type ArtServer, createArtServer } from '../../src/server/index.ts';
import { createScriptedEngine, type ScriptedEngine } from '../../src/testing/index.ts';

export const modelName = 'fuzz';

/** What a request carries and its answer repeats; the digits are its own. */
export const markerPattern = /mk-[0-9a-f]{8}/g;

export interface FuzzTarget extends AsyncDisposable {
  readonly server: ArtServer;
  readonly port: number;
  /** Folder of the model's weights, for registrations. */
  readonly baseModel: string;
  /** Sequences that the engine still holds. */
  readonly runningSequences: () => Promise<number>;
}

export async function startTarget(): Promise<FuzzTarget> {
  const root = await mkdtemp(join(tmpdir(), 'art-fuzz-'));
  const baseModel = join(root, 'model');
  const corpus = Array.from(
    { length: 16 },
    (_, i) => `Say mk-${(i * 0x11111111).toString(16).padStart(8, '0')} again.`,
  );
  await writeStarterModel({ seed: 1, directory: baseModel, corpus, width: 32, layers: 1 });
  const tokenizer = await loadTokenizer(baseModel);
  const engines: ScriptedEngine[] = [];
  const createEngine = async (): Promise<ScriptedEngine> => {
    const engine = createScriptedEngine({
      decode: tokenizer.decode,
      reply: ({ promptIds, isStreaming }, call) => {
        const marker = tokenizer.decode(promptIds).match(markerPattern)?.at(-1) ?? 'no marker';
        const delay = isStreaming && call % 16 === 0 ? { delayMs: 1 } : {};
        return { tokenIds: tokenizer.encode(`${marker}<|im_end|>`), ...delay };
      },
    });
    (engine.requests as unknown[]).push = () => 0; // what it keeps for tests would grow with every request
    engines.push(engine);
    return engine;
  };
  const server = await createArtServer({ root: join(root, 'runs'), createEngine, onWarning: () => {} });
  const model = new TrainableModel({ name: modelName, project: modelName, baseModel });
  await model.register(new RemoteBackend({ baseURL: server.url }));
  return {
    server,
    port: Number(new URL(server.url).port),
    baseModel,
    runningSequences: async () => {
      const infos = await Promise.all(engines.map((engine) => engine.doInfo().catch(() => null)));
      return infos.reduce((sum, info) => sum + (info?.runningSequences ?? 0), 0);
    },
    [Symbol.asyncDispose]: async () => {
      await server.close();
      await rm(root, { recursive: true, force: true });
    },
  };
}
