/** A server that is stopped: samples in flight finish, new requests are refused as retryable, and what takes too long is cut short. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { writeStarterModel } from '../formats/starter-model.ts';
import { loadTokenizer } from '../formats/tokenizer.ts';
import { createScriptedEngine } from '../testing/scripted-engine.ts';
import { type ArtServer, createArtServer } from './index.ts';

async function startServer(delayMs: number, drainMs: number): Promise<{ server: ArtServer; warnings: string[] }> {
  const root = await mkdtemp(join(tmpdir(), 'art-drain-'));
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
  await writeStarterModel({ seed: 1, directory: join(root, 'base'), corpus: ['left'], ...sizes });
  const tokenizer = await loadTokenizer(join(root, 'base'));
  const warnings: string[] = [];
  const reply = { tokenIds: [...tokenizer.encode('left'), tokenizer.eosId!], delayMs };
  const server = await createArtServer({
    root: join(root, '.art'),
    drainMs,
    onWarning: (message) => warnings.push(message),
    createEngine: async () => createScriptedEngine({ reply: () => reply }),
  });
  onTestFinished(async () => {
    await server.close();
    await rm(root, { recursive: true });
  });
  const lora = { rank: 4, alpha: 8 };
  await server.registry.register({ name: 'm', project: 'p', base_model: join(root, 'base'), lora, seed: 1 });
  return { server, warnings };
}

function ask(server: ArtServer): Promise<Response> {
  return fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'go' }] }),
  });
}

test('what is in flight is answered; what comes meanwhile gets 503, and its connection ends', async () => {
  const { server, warnings } = await startServer(600, 10_000);
  const early = ask(server);
  await new Promise((resolve) => setTimeout(resolve, 150));
  const startedAt = performance.now();
  const closing = server.close();
  const late = await ask(server);
  expect(late.status).toBe(503);
  expect([late.headers.get('connection'), late.headers.get('retry-after')]).toEqual(['close', '1']);
  expect(await late.json()).toMatchObject({ error: { message: expect.stringContaining('is shutting down') } });
  const answer = await early;
  expect(answer.status).toBe(200);
  expect(await answer.json()).toMatchObject({ choices: [{ message: { content: 'left' } }] });
  await closing;
  expect(performance.now() - startedAt).toBeLessThan(5000);
  expect(warnings).toEqual([]);
  await expect(ask(server)).rejects.toThrow();
});

test('what takes longer than the limit is cut short, and it is said', async () => {
  const { server, warnings } = await startServer(60_000, 200);
  const early = ask(server).then(
    (response) => response.status,
    () => 'connection lost',
  );
  await new Promise((resolve) => setTimeout(resolve, 150));
  const startedAt = performance.now();
  await server.close();
  expect(performance.now() - startedAt).toBeLessThan(5000);
  expect(await early).toBe('connection lost');
  expect(warnings).toEqual(['server: 1 samples in flight are cut short after 200 ms']);
});

test('a server that has nothing to do stops at once', async () => {
  const { server } = await startServer(0, 60_000);
  const startedAt = performance.now();
  await server.close();
  expect(performance.now() - startedAt).toBeLessThan(3000);
});
