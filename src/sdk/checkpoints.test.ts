import { expect, test } from 'vitest';
import { openRemoteApi } from '../../test/server/remote-api.ts';
import { ApiError, ConfigError, DataError } from '../core/errors.ts';
import { chooseKept } from './checkpoints.ts';

const stepsOf = (list: readonly { readonly step: number }[]): number[] => list.map(({ step }) => step);

test('checkpoints are listed and described in the names of the SDK', async () => {
  const { api, model } = await openRemoteApi();
  for (const key of ['a', 'b', 'c']) await api.train(key);
  expect(stepsOf(await model.listCheckpoints())).toEqual([0, 1, 2, 3]);
  expect(stepsOf(await model.listCheckpoints({ from: 1, to: 2 }))).toEqual([1, 2]);
  const newest = await model.getCheckpoint();
  expect(newest).toMatchObject({ step: 3, parentStep: 2, kind: 'train', isNewest: true });
  expect(newest.provenance).toMatchObject({ baseModel: api.registration.base_model, trainedBy: { kind: 'local' } });
  expect(await model.getCheckpoint(0)).toMatchObject({ parentStep: null, kind: null, isNewest: false });
  await expect(model.getCheckpoint(9)).rejects.toThrow(/checkpoint 9 of model agent: .*got step 9/);
});

test('a rollback without confirm says what would be lost and does nothing', async () => {
  const { api, backend, model } = await openRemoteApi();
  for (const key of ['a', 'b']) await api.train(key);
  const refused = await model.rollback(1).catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(ApiError);
  expect(refused).toMatchObject({ status: 409, details: { code: 'confirmation_required' } });
  expect(String(refused)).toMatch(
    /rollback of model agent to step 1: needs \{ confirm: true \}, since agent serves step 1 again; .*up to 2, move to the trash/,
  );
  expect(await model.getStep()).toBe(2);
  const removed = await model.rollback(1, { confirm: true });
  expect(removed).toMatchObject({ step: 1, removed: [{ step: 2 }] });
  expect(await model.getStep()).toBe(1);
  const [item] = await backend.listTrash();
  expect(item).toMatchObject({ id: removed.removed[0]?.trashId, kind: 'checkpoint', name: 'agent@2' });
  await backend.restoreFromTrash(item!.id);
  expect(await model.getStep()).toBe(2);
  await expect(model.rollback(1, { confirmed: true } as object)).rejects.toThrow(/known options are confirm, signal/);
});

test('deleteCheckpoints keeps the best by a metric, the newest, and what is named', async () => {
  const { api, model } = await openRemoteApi();
  for (const key of ['a', 'b', 'c', 'd']) await api.train(key);
  for (const [step, reward] of [0.1, 0.9, 0.3, 0.2].entries()) {
    await model.log([], { metrics: { reward, cost: reward }, step });
  }
  await expect(model.deleteCheckpoints()).rejects.toThrow(
    'deleteCheckpoints of model agent: needs { confirm: true }, since steps 0, 2, 3 would move to the trash; kept are 1, 4',
  );
  expect(await model.listCheckpoints()).toHaveLength(5);
  const keep = { best: { metric: 'val/cost', mode: 'min' as const }, steps: [2] };
  const deleted = await model.deleteCheckpoints({ keep, confirm: true });
  expect(deleted.kept).toEqual([0, 2, 4]);
  expect(stepsOf(deleted.removed)).toEqual([1, 3]);
  expect(stepsOf(await model.listCheckpoints())).toEqual([0, 2, 4]);
});

test('deleteCheckpoints deletes nothing by a metric that nobody logged', async () => {
  const { api, model } = await openRemoteApi();
  for (const key of ['a', 'b']) await api.train(key);
  await expect(model.deleteCheckpoints({ confirm: true })).rejects.toThrow(DataError);
  expect(await model.listCheckpoints()).toHaveLength(3);
  const deleted = await model.deleteCheckpoints({ keep: { best: null }, confirm: true });
  expect(deleted.kept).toEqual([2]);
});

test('of equal values the later step is the better one; several evaluations of a step are averaged', () => {
  const point = (step: number, value: number) => ({ step, split: 'val', value });
  expect(chooseKept([0, 1, 2], [point(0, 1), point(1, 1)], {})).toEqual([1, 2]);
  expect(chooseKept([0, 1, 2], [point(0, 1), point(1, 3), point(1, -2)], {})).toEqual([0, 2]);
  expect(chooseKept([0, 1, 2, 3], [point(0, 1), point(1, 2), point(2, 3)], { best: { count: 2 } })).toEqual([1, 2, 3]);
  expect(() => chooseKept([0], [], { last: 0 })).toThrow(ConfigError);
});

test('retention is told, set once confirmed, and applied at once', async () => {
  const { api, backend, model } = await openRemoteApi();
  for (const key of ['a', 'b']) await api.train(key);
  expect(await backend.getRetention(model)).toEqual({ keepLast: null, keepBest: null });
  await expect(backend.setRetention(model, { keepLast: 1 })).rejects.toThrow(/deleted for good/);
  expect(await backend.setRetention(model, { keepLast: 1 }, { confirm: true })).toEqual({
    keepLast: 1,
    keepBest: null,
  });
  expect(stepsOf(await model.listCheckpoints())).toEqual([2]);
  await expect(backend.setRetention(model, { keep_last: 1 } as object)).rejects.toThrow(/got keep_last/);
});

test('a model is deleted once confirmed, and comes back from the trash', async () => {
  const { api, backend, model } = await openRemoteApi();
  await api.train('a');
  expect(await backend.listModels()).toMatchObject([{ name: 'agent', project: 'demo', step: 1 }]);
  await expect(backend.deleteModel(model)).rejects.toThrow(/needs \{ confirm: true \}, since model agent .* stops/);
  const { trashId } = await backend.deleteModel(model, { confirm: true });
  expect(await backend.listModels()).toEqual([]);
  await expect(backend.purgeFromTrash(trashId)).rejects.toThrow(/is gone for good/);
  await backend.restoreFromTrash(trashId);
  await backend.register(model);
  expect(await model.getStep()).toBe(1);
});

test('jobs are listed, told and followed; one that ended cannot be cancelled', async () => {
  const { api, backend } = await openRemoteApi();
  await api.train('a');
  const [job] = await backend.listJobs({ model: 'agent', state: 'done' });
  expect(job).toMatchObject({ kind: 'train', model: 'agent', state: 'done', result: { step: 1 } });
  expect(await backend.getJob(job!.id)).toEqual(job);
  expect(await backend.followJob(job!.id)).toEqual(job);
  await expect(backend.cancelJob(job!.id)).rejects.toMatchObject({ status: 409, details: { code: 'job_ended' } });
  expect(await backend.listJobs({ model: 'other' })).toEqual([]);
  await expect(backend.getJob('job-0')).rejects.toThrow(/job job-0: job: must be one of/);
});

test('a metric is read over the steps', async () => {
  const { model, backend } = await openRemoteApi();
  for (const step of [0, 0, 1]) await model.log([], { metrics: { reward: step + 1 }, step });
  expect(await model.getMetric('val/reward', { from: 1 })).toEqual([{ step: 1, split: 'val', value: 2 }]);
  expect(await model.getMetric('val/reward')).toHaveLength(2);
  expect(await model.getMetric('val/nothing')).toEqual([]);
  expect(await backend.listMetrics(model)).toContain('val/reward');
});
