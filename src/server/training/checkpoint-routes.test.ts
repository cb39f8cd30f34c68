import { createHash } from 'node:crypto';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { TestApi } from '../../../test/server/test-api.ts';
import { stepsToDelete } from '../store/retention.ts';

let api: TestApi;
beforeEach(async () => {
  api = await TestApi.open();
});
afterEach(() => api.close());

const path = '/api/models/agent';
const steps = async (): Promise<number[]> =>
  (await api.call('GET', `${path}/checkpoints`)).json.checkpoints.map(({ step }: { step: number }) => step);
const folders = async (): Promise<string[]> => {
  const names = await readdir(join(api.registry.get('agent').directory, 'checkpoints'));
  return names.filter((name) => /^\d+$/.test(name)).sort();
};

async function trainSteps(...keys: readonly string[]): Promise<number[]> {
  const made: number[] = [];
  for (const key of keys) made.push((await api.train(key)).step);
  return made;
}

test('checkpoints say when, how large, from what and by whom', async () => {
  await trainSteps('a', 'b');
  const { checkpoints, next_from } = (await api.call('GET', `${path}/checkpoints?from=1&limit=1`)).json;
  expect(next_from).toBe(2);
  expect(checkpoints).toHaveLength(1);
  expect(checkpoints[0]).toMatchObject({ step: 1, parent_step: 0, kind: 'train', is_newest: false });
  expect(checkpoints[0].provenance).toMatchObject({
    base_model: api.registration.base_model,
    trained_by: { kind: 'local' },
    config: { learningRate: 0.25, loss: 'cispo' },
  });
  expect(checkpoints[0].metrics['loss/learning_rate']).toBe(0.25);
  expect((await api.call('GET', `${path}/checkpoints/0`)).json).toMatchObject({ kind: null, parent_step: null });
  expect((await api.call('GET', `${path}/checkpoints/7`)).status).toBe(404);
  expect((await api.call('GET', `${path}/checkpoints/1e1`)).status).toBe(404);
});

test('a file is downloaded whole, and no name leads out of the checkpoint', async () => {
  await trainSteps('a');
  const { files } = (await api.call('GET', `${path}/checkpoints/1`)).json;
  const [file] = files.filter(({ name }: { name: string }) => name === 'adapter_model.safetensors');
  const response = await api.request('GET', `${path}/checkpoints/1/files/${file.name}`);
  const bytes = Buffer.from(await response.arrayBuffer());
  expect(createHash('sha256').update(bytes).digest('hex')).toBe(file.sha256);
  expect(response.headers.get('etag')).toBe(`"${file.sha256}"`);
  await writeFile(join(api.registry.get('agent').directory, 'checkpoints', 'secret'), 'secret');
  for (const name of [
    '..%2fsecret',
    '%2e%2e%2fsecret',
    'checkpoint.json',
    'toString',
    '__proto__',
    'x%00',
    '..%5csecret',
  ]) {
    expect((await api.call('GET', `${path}/checkpoints/1/files/${name}`)).status).toBe(404);
  }
});

test('a checkpoint is deleted once confirmed, its key still trains once, and it can be put back', async () => {
  await trainSteps('a', 'b');
  const unconfirmed = await api.call('DELETE', `${path}/checkpoints/1`);
  expect(unconfirmed).toMatchObject({ status: 409, json: { error: { code: 'confirmation_required' } } });
  expect(await steps()).toEqual([0, 1, 2]);
  const { json } = await api.confirmed('DELETE', `${path}/checkpoints/1`);
  expect(json).toMatchObject({ step: 2, removed: [{ step: 1 }] });
  expect(await steps()).toEqual([0, 2]);
  expect((await api.train('a')).step).toBe(1);
  await api.restart();
  expect((await api.train('a')).step).toBe(1);
  expect(api.engine.calls).not.toContain('optimStep');
  const trash = (await api.call('GET', '/api/trash')).json.items;
  expect(trash).toMatchObject([{ kind: 'checkpoint', name: 'agent@1', deleted_by: { kind: 'local' } }]);
  await api.call('POST', `/api/trash/${trash[0].id}/restore`);
  expect(await steps()).toEqual([0, 1, 2]);
  expect((await api.call('GET', '/api/trash')).json.items).toEqual([]);
});

test('the served checkpoint is not deleted', async () => {
  await trainSteps('a');
  expect(await api.call('DELETE', `${path}/checkpoints/1`)).toMatchObject({
    status: 409,
    json: { error: { code: 'checkpoint_in_use' } },
  });
});

test('rolled back: the earlier step is served and trained on, step numbers are new, undone keys train again', async () => {
  await trainSteps('a');
  const weightOf1 = api.engine.weight();
  await trainSteps('b', 'c');
  const { json } = await api.confirmed('POST', `${path}/rollback`, { step: 1 });
  expect(json.step).toBe(1);
  expect(json.removed.map(({ step }: { step: number }) => step)).toEqual([3, 2]);
  expect(api.registry.get('agent').model.step()).toBe(1);
  expect(api.engine.weight()).toBe(weightOf1);
  expect(api.engine.newestStep()).toBe(1);
  expect(await folders()).toEqual(['0000', '0001']);
  await api.restart();
  expect(api.registry.get('agent').model.step()).toBe(1);
  // Key b was undone: it trains again, as a step that never was.
  expect((await api.train('b')).step).toBe(4);
  expect((await api.call('GET', `${path}/checkpoints/4`)).json.parent_step).toBe(1);
  const rows = (await api.call('GET', `${path}/history?split=train`)).json.rows;
  expect(rows.map(({ step }: { step: number }) => step)).toEqual([1, 2, 3, 4]);
});

test('what was rolled back is put back: the newest step is served again', async () => {
  await trainSteps('a', 'b');
  const weight = api.engine.weight();
  const { removed } = (await api.confirmed('POST', `${path}/rollback`, { step: 0 })).json;
  expect(api.engine.weight()).not.toBe(weight);
  for (const { trash_id } of removed)
    expect((await api.call('POST', `/api/trash/${trash_id}/restore`)).status).toBe(200);
  expect(await steps()).toEqual([0, 1, 2]);
  expect(api.registry.get('agent').model.step()).toBe(2);
  expect(api.engine.weight()).toBe(weight);
  expect((await api.train('a')).step).toBe(1);
  expect(await trainSteps('c')).toEqual([3]);
});

test('purged is gone for good', async () => {
  await trainSteps('a', 'b');
  const { removed } = (await api.confirmed('DELETE', `${path}/checkpoints/1`)).json;
  expect((await api.confirmed('DELETE', `/api/trash/${removed[0].trash_id}`)).status).toBe(200);
  expect((await api.call('GET', '/api/trash')).json.items).toEqual([]);
  expect((await api.call('POST', `/api/trash/${removed[0].trash_id}/restore`)).status).toBe(404);
});

test('a rule of retention deletes at once and after every step, but never the newest', async () => {
  await trainSteps('a', 'b', 'c');
  const rule = { keep_last: 2, keep_best: null };
  expect((await api.confirmed('PUT', `${path}/retention`, rule)).json).toEqual(rule);
  expect(await steps()).toEqual([2, 3]);
  await trainSteps('d');
  await expect.poll(steps).toEqual([3, 4]);
  expect((await api.call('GET', `${path}/retention`)).json).toEqual(rule);
  await api.restart();
  expect((await api.train('a')).step).toBe(1);
  expect(await trainSteps('e')).toEqual([5]);
});

test('which steps a rule deletes', () => {
  const history = [1, 2, 3, 4].map((step) => ({ step, split: 'val', accuracy: [0.5, 0.9, 0.9, 0.1][step - 1]! }));
  const best = (count: number, mode: 'max' | 'min' = 'max') => ({ metric: 'accuracy', split: 'val', count, mode });
  const all = [0, 1, 2, 3, 4];
  expect(stepsToDelete(all, history, { keep_last: null, keep_best: null })).toEqual([]);
  expect(stepsToDelete(all, history, { keep_last: 2, keep_best: null })).toEqual([0, 1, 2]);
  expect(stepsToDelete(all, history, { keep_last: null, keep_best: best(1) })).toEqual([0, 1, 2]);
  expect(stepsToDelete(all, history, { keep_last: 1, keep_best: best(2) })).toEqual([0, 1]);
  expect(stepsToDelete(all, history, { keep_last: null, keep_best: best(1, 'min') })).toEqual([0, 1, 2, 3]);
  expect(stepsToDelete(all, [], { keep_last: null, keep_best: best(3) })).toEqual([0, 1, 2, 3]);
});

test('a model is deleted once confirmed, restored, and registered again where it was', async () => {
  await trainSteps('a');
  const { json } = await api.confirmed('DELETE', path);
  expect(json.name).toBe('agent');
  expect((await api.call('GET', path)).status).toBe(404);
  expect((await api.call('GET', '/api/models')).json.models).toEqual([]);
  await api.call('POST', `/api/trash/${json.trash_id}/restore`);
  expect((await api.call('POST', '/api/models', api.registration)).json).toMatchObject({ name: 'agent', step: 1 });
});
