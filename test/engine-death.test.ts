/** The embedded engine dies or stands still under a server: what clients see, and that the same policy is served again. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ArtServer, createArtServer } from '../src/server/index.ts';
import { expectGone } from './child-processes.ts';
import { createTinyModelFolder, type TinyModelFolder } from './tiny-model-folder.ts';

let model: TinyModelFolder;
let server: ArtServer;
const warnings: string[] = [];

beforeAll(async () => {
  model = await createTinyModelFolder({ maxPositions: 2048 });
  server = await createArtServer({
    root: join(model.folder, '.art'),
    engineTuning: { trainThreads: 1, cacheTokens: 16_384, hangLimitMs: 3000 },
    engineRestart: { requestWaitMs: 20_000 },
    onWarning: (message) => warnings.push(message),
  });
  const lora = { rank: 2, alpha: 4 };
  await server.registry.register({ name: 'm', project: 'p', base_model: model.modelDirectory, lora, seed: 1 });
});
afterAll(async () => {
  await server.close();
  await model.remove();
});

function ask(fields: object): Promise<Response> {
  const body = { model: 'm', messages: [{ role: 'user', content: 'yes' }], temperature: 0, ...fields };
  return fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
}

const greedy = async (): Promise<unknown> => {
  const response = await ask({ max_tokens: 20, return_token_ids: true });
  expect(response.status).toBe(200);
  return ((await response.json()) as { choices: [{ token_ids: number[] }] }).choices[0].token_ids;
};

/** Runs for long: the policy is random, and rarely ends a turn. */
const long = { temperature: 1, max_tokens: 1900, seed: 3 };

const enginePid = async (): Promise<number> => {
  const health = await fetch(`${server.url}/healthz`);
  return ((await health.json()) as { models: [{ engine: { process_id: number } }] }).models[0].engine.process_id;
};

test.each([
  ['SIGKILL', 2000],
  ['SIGSTOP', 8000],
] as const)(
  '%s: requests in flight fail as retryable within %i ms, later ones wait and get the same policy',
  {
    timeout: 60_000,
  },
  async (signal, limitMs) => {
    const before = await greedy();
    const pid = await enginePid();
    const waiting = ask(long);
    await new Promise((resolve) => setTimeout(resolve, 100));
    const startedAt = performance.now();
    process.kill(pid, signal);
    const failed = await waiting;
    expect(performance.now() - startedAt).toBeLessThan(limitMs);
    expect([failed.status, failed.headers.get('retry-after')]).toEqual([503, '1']);
    expect(await failed.json()).toMatchObject({ error: { code: 'engine_error', type: 'server_error' } });
    await expectGone(pid, 1000);
    const during = await fetch(`${server.url}/healthz`);
    expect([during.status, ((await during.json()) as { models: [object] }).models[0]]).toEqual([
      503,
      expect.objectContaining({ status: 'unavailable', engine_state: 'restarting' }),
    ]);
    // Sent while it starts again: waits for it.
    expect(await greedy()).toEqual(before);
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
    expect(await enginePid()).not.toBe(pid);
    expect(warnings.at(-1)).toMatch(/^engine of m: runs again after \d+\.\d s$/);
  },
);
