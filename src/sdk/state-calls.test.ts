import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { openRemoteApi } from '../../test/server/remote-api.ts';
import { ApiError, DataError } from '../core/errors.ts';

test('state is merged at every depth, replaced whole, and read back as it was written', async () => {
  const { model } = await openRemoteApi();
  expect(await model.readState()).toEqual({});
  await model.mergeState({ dataset: { epoch: 0, order: [3, 1, 2] }, note: 'first' });
  const merged = await model.mergeState({ dataset: { epoch: 1, order: [2] }, note: null, more: { deep: { x: 1 } } });
  expect(merged).toEqual({ dataset: { epoch: 1, order: [2] }, note: null, more: { deep: { x: 1 } } });
  expect(await model.readState()).toEqual(merged);
  await model.overwriteState({ only: true });
  expect(await model.readState()).toEqual({ only: true });
});

test('state survives a restart of the server, and is not touched by training', async () => {
  const { api, model } = await openRemoteApi();
  await model.mergeState({ cursor: 7 });
  await api.train('a');
  await api.restart();
  const answer = await api.call('GET', '/api/models/agent/state');
  expect(answer.json).toEqual({ cursor: 7 });
});

test('merges that come at the same time are all kept', async () => {
  const { model } = await openRemoteApi();
  const keys = Array.from({ length: 40 }, (_, index) => `key-${index}`);
  await Promise.all(keys.map((key, index) => model.mergeState({ counts: { [key]: index } })));
  expect(await model.readState()).toEqual({ counts: Object.fromEntries(keys.map((key, index) => [key, index])) });
});

test('a key that would reach a prototype is a key like any other', async () => {
  const { api, model } = await openRemoteApi();
  const body = JSON.parse('{"constructor": {"prototype": {"polluted": true}}, "a": 1}');
  await api.call('POST', '/api/models/agent/state', body);
  await api.request('POST', '/api/models/agent/state', JSON.parse('{"__proto__": {"polluted": true}}'));
  expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  expect((await model.readState()).a).toBe(1);
});

test('what JSON would change is refused with its place; what is too large is refused and nothing is lost', async () => {
  const { model } = await openRemoteApi();
  await model.mergeState({ kept: 1 });
  await expect(model.mergeState({ a: [{ b: Number.NaN }] })).rejects.toThrow(
    new DataError(
      'mergeState of model agent.a[0].b: must be JSON (objects, arrays, strings, finite numbers, booleans, null), got NaN',
    ),
  );
  await expect(model.overwriteState({ at: new Date() })).rejects.toThrow(
    /overwriteState of model agent\.at: .*got a Date/,
  );
  await expect(model.mergeState({ big: 'x'.repeat(2 ** 20 - 100) })).resolves.toBeDefined();
  const tooLarge = await model.mergeState({ more: 'x'.repeat(1000) }).catch((error: unknown) => error);
  expect(tooLarge).toBeInstanceOf(ApiError);
  expect(tooLarge).toMatchObject({ status: 413, details: { code: 'state_too_large' } });
  expect(await model.readState()).not.toHaveProperty('more');
});

test('a damaged file is named and not overwritten by a merge', async () => {
  const { api, model } = await openRemoteApi();
  const path = join(api.registry.get('agent').directory, 'state.json');
  await writeFile(path, '[1]');
  await expect(model.mergeState({ a: 1 })).rejects.toThrow(/state\.json: must be a JSON object/);
  expect(await readFile(path, 'utf8')).toBe('[1]');
});
