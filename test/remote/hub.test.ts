/** Push to and pull from the Hugging Face hub, against a server on loopback that speaks its protocol. */
import { expect, onTestFinished, test } from 'vitest';
import { type HubServer, startHub, validToken } from '../hub/hub-server.ts';
import { createModel, openRemoteApi, type RemoteApi } from '../server/remote-api.ts';

async function open(token = validToken): Promise<RemoteApi & { readonly hub: HubServer }> {
  const hub = await startHub({});
  onTestFinished(() => hub.close());
  const limits = { requestTimeoutMs: 2_000, silenceTimeoutMs: 500, maxRetries: 2, retryDelayMs: 1 };
  const remote = await openRemoteApi({ hub: { endpoint: hub.endpoint, token, isOffline: false, ...limits } });
  await remote.api.train('a');
  return { ...remote, hub };
}
const to = 'hf://org/agent';

test('a push makes a private repository and one commit; a pull of it is the same checkpoint', async () => {
  const { api, model, backend, hub } = await open();
  hub.writes.failingUploads = 1;
  const first = await model.pushCheckpoint({ to });
  expect(first).toMatchObject({
    place: `hf://org/agent@${hub.commitOf('org/agent')}`,
    step: 1,
    files: 2,
    skippedFiles: 0,
  });
  const repo = hub.repos.get('org/agent');
  expect(repo?.isPrivate).toBe(true);
  const names = ['README.md', 'adapter_config.json', 'adapter_model.safetensors', 'manifest.json'];
  expect(Object.keys(repo?.files ?? {}).sort()).toEqual(names);
  expect(await model.pushCheckpoint({ to })).toMatchObject({ skippedFiles: 2, copiedBytes: 0, place: first.place });
  const fork = createModel(api, 'fork');
  expect(await backend.pullCheckpoint(fork, { from: first.place })).toMatchObject({ step: 1, isNew: true });
  await fork.register(backend);
  expect((await fork.getCheckpoint()).files).toEqual((await model.getCheckpoint()).files);
  await expect(backend.pullCheckpoint(createModel(api, 'other'), { from: to, step: 9 })).rejects.toThrow(
    /must hold step 9, got step 1/,
  );
});

test('wrong bytes make no model; a token that may not write is named, not told', async () => {
  const { api, model, backend, hub } = await open();
  await model.pushCheckpoint({ to });
  hub.faults = { damages: [{ path: 'adapter_model.safetensors', times: 9 }] };
  await expect(backend.pullCheckpoint(createModel(api, 'fork'), { from: to })).rejects.toThrow(/SHA-256 must be/);
  expect((await backend.listModels()).map(({ name }) => name)).toEqual(['agent']);
  const stranger = await open('hf_wrongTokenOfTheTest');
  const refused = await stranger.model.pushCheckpoint({ to }).catch((error: Error) => error.message);
  expect(refused).toMatch(/must be writable with the server's HF_TOKEN/);
  expect(refused).not.toContain('wrongTokenOfTheTest');
});
