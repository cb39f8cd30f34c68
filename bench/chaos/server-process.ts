/** The server that is killed, as a process of its own: `server-process.js <root>`. It tells its URL, and its engine's process id when asked. */
import { createArtServer } from '../../src/server/index.ts';

/** What it says to its parent. */
export type FromServer =
  | { readonly kind: 'listening'; readonly url: string }
  | { readonly kind: 'engine'; readonly processId: number | null };

const [root] = process.argv.slice(2);
if (root === undefined || process.send === undefined) {
  throw new Error('chaos server: must be started by `npm run chaos`, got no folder or no channel');
}
const say = (message: FromServer): void => void process.send?.(message);

// Whoever started it has gone.
process.on('disconnect', () => process.exit(1));
const server = await createArtServer({
  root,
  engineTuning: { trainThreads: 1, sampleThreads: 1, cacheTokens: 8192 },
  // Deaths are what this is about.
  engineRestart: { maxQuickDeaths: 1_000_000 },
  onWarning: () => undefined,
});
process.on('message', () => {
  const [run] = server.registry.list();
  say({ kind: 'engine', processId: run?.model.engine.processId?.() ?? null });
});
say({ kind: 'listening', url: server.url });
