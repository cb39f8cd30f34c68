/** Checkpoints and the trash over HTTP. Layer 5. What destroys needs a confirmation, and is written to the audit log. */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { join, resolve, sep } from 'node:path';
import { Readable } from 'node:stream';
import type { Context } from 'hono';
import { isMissing } from '../../formats/atomic-files.ts';
import type { checkpointRoutes } from '../../wire/checkpoint-routes.ts';
import type { CheckpointInfo, RemovedCheckpoints } from '../../wire/checkpoints.ts';
import { refuse } from '../../wire/errors.ts';
import { pathParam, type RouteHandlers, stepParam } from '../http/routes.ts';
import { callerOf, recordChange, whoOf } from '../security/caller.ts';
import { requireConfirmation } from '../security/confirmation.ts';
import type { StoredCheckpoint } from '../store/checkpoints.ts';
import type { RemovalReason } from '../store/removed-checkpoints.ts';
import { applyRetention, readRetention, writeRetention } from '../store/retention.ts';
import { metricsOf, weightsSha256 } from '../store/step-result.ts';
import { listTrash, moveToTrash, purge, restoreFromTrash, type TrashItem } from '../store/trash.ts';
import { forkHandlers } from './fork-routes.ts';
import type { ModelRegistry } from './model-registry.ts';
import type { TrainingRun } from './training-run.ts';

const pageSize = 1_000;

type Handlers<Name extends keyof typeof checkpointRoutes> = RouteHandlers<Pick<typeof checkpointRoutes, Name>>;

export function checkpointHandlers(registry: ModelRegistry): RouteHandlers<typeof checkpointRoutes> {
  return {
    ...readingHandlers(registry),
    ...removingHandlers(registry),
    ...trashHandlers(registry),
    ...forkHandlers(registry),
  };
}

function readingHandlers(
  registry: ModelRegistry,
): Handlers<'listCheckpoints' | 'getCheckpoint' | 'downloadFile' | 'getRetention'> {
  return {
    listCheckpoints: async (c, { query }) => {
      const run = registry.get(pathParam(c, 'name'));
      const { from = 0, to = Number.POSITIVE_INFINITY, limit = pageSize } = query;
      const wanted = run.checkpoints.list().filter(({ manifest }) => manifest.step >= from && manifest.step <= to);
      const checkpoints = await Promise.all(wanted.slice(0, limit).map((checkpoint) => describe(run, checkpoint)));
      return c.json({ checkpoints, next_from: wanted[limit]?.manifest.step ?? null });
    },
    getCheckpoint: async (c) => {
      const run = registry.get(pathParam(c, 'name'));
      return c.json(await describe(run, find(run, stepParam(c))));
    },
    downloadFile: async (c) => {
      const { directory, manifest } = find(registry.get(pathParam(c, 'name')), stepParam(c));
      const name = pathParam(c, 'file');
      // Only a name that the manifest has becomes a path.
      const file = Object.hasOwn(manifest.files, name) ? manifest.files[name] : undefined;
      if (file === undefined) {
        const names = Object.keys(manifest.files).join(', ');
        const got = JSON.stringify(name.slice(0, 80));
        throw refuse(404, 'not_found', `file: must be one of the checkpoint's (${names}), got ${got}`, 'file');
      }
      const body = Readable.toWeb(createReadStream(join(directory, name))) as ReadableStream<Uint8Array>;
      return c.body(body, 200, {
        'content-type': 'application/octet-stream',
        'content-length': String(file.bytes),
        'content-disposition': `attachment; filename="${name}"`,
        etag: `"${file.sha256}"`,
      });
    },
    getRetention: async (c) => c.json(await readRetention(registry.get(pathParam(c, 'name')).directory)),
  };
}

function removingHandlers(registry: ModelRegistry): Handlers<'deleteCheckpoint' | 'rollBack' | 'setRetention'> {
  return {
    deleteCheckpoint: async (c) => {
      const run = registry.get(pathParam(c, 'name'));
      const step = stepParam(c);
      find(run, step);
      if (step === run.model.step()) {
        throw refuse(
          409,
          'checkpoint_in_use',
          `checkpoint ${step}: is what is served; roll back to an earlier step first`,
        );
      }
      const target = `${run.model.project}/${run.model.name}@${step}`;
      requireConfirmation(c, { action: 'checkpoint.delete', target, what: `checkpoint ${target} moves to the trash` });
      const removed = await discard(c, registry, run, () => [step], 'deleted');
      await recordChange(c, { what: 'checkpoint.delete', target, after: removed });
      return c.json(removed);
    },
    rollBack: async (c, { body }) => {
      const run = registry.get(pathParam(c, 'name'));
      find(run, body.step);
      const fromStep = run.model.step();
      if (body.step === fromStep) return c.json({ step: fromStep, removed: [] });
      const target = `${run.model.project}/${run.model.name}@${body.step}`;
      const what = `${run.model.name} serves step ${body.step} again; checkpoints of later steps, up to ${fromStep}, move to the trash`;
      requireConfirmation(c, { action: 'model.rollback', target, what });
      const isLater = ({ manifest }: StoredCheckpoint): boolean => manifest.step > body.step;
      const removed = await discard(c, registry, run, (all) => all.filter(isLater).map(stepOf), 'rolledBack');
      await recordChange(c, { what: 'model.rollback', target, before: { step: fromStep }, after: removed });
      return c.json(removed);
    },
    setRetention: async (c, { body }) => {
      const run = registry.get(pathParam(c, 'name'));
      const target = `${run.model.project}/${run.model.name}`;
      const what = `checkpoints of ${target} that the rule does not keep are deleted for good, at once and after every step`;
      requireConfirmation(c, { action: 'retention.set', target, what });
      const before = await readRetention(run.directory);
      await writeRetention(run.directory, body);
      const steps = await applyRetention(run);
      await recordChange(c, { what: 'retention.set', target, before, after: { ...body, deleted_steps: steps } });
      if (steps.length > 0) announceDeleted(registry, run, steps, 'retention');
      return c.json(body);
    },
  };
}

function trashHandlers(registry: ModelRegistry): Handlers<'listTrash' | 'restoreTrash' | 'purgeTrash'> {
  const find = async (id: string): Promise<TrashItem> => {
    const item = (await listTrash(registry.root)).find((candidate) => candidate.id === id);
    if (item !== undefined) return item;
    throw refuse(404, 'not_found', `trash: must hold the item, got ${JSON.stringify(id.slice(0, 80))}`, 'id');
  };
  return {
    listTrash: async (c) => c.json({ items: await listTrash(registry.root) }),
    restoreTrash: async (c) => {
      const item = await find(pathParam(c, 'id'));
      const path = resolve(registry.root, item.path);
      const run = registry.list().find(({ directory }) => path.startsWith(`${directory}${sep}`));
      const restore = (): Promise<TrashItem> => restoreFromTrash(registry.root, item.project, item.id);
      await (run === undefined
        ? restore()
        : run.changeCheckpoints(async (checkpoints) => {
            await restore();
            await checkpoints.refresh();
          }));
      await recordChange(c, { what: `${item.kind}.restore`, target: item.name, after: { path: item.path } });
      if (run !== undefined) {
        const steps = [Number(item.name.split('@').at(-1))];
        registry.events.publish({ type: 'checkpoint.restored', data: { model: run.model.name, steps } });
      }
      return c.json(item);
    },
    purgeTrash: async (c) => {
      const item = await find(pathParam(c, 'id'));
      const what = `${item.kind} ${item.name}, deleted at ${item.deleted_at}, is gone for good`;
      requireConfirmation(c, { action: 'trash.purge', target: item.id, what });
      await purge(registry.root, item.project, { id: item.id });
      await recordChange(c, { what: 'trash.purge', target: item.id, before: item });
      return c.json(item);
    },
  };
}

/** Moves checkpoints to the trash, the newest first; `choose` sees those that are there when the run's turn comes. */
async function discard(
  c: Context,
  registry: ModelRegistry,
  run: TrainingRun,
  choose: (all: readonly StoredCheckpoint[]) => readonly number[],
  reason: RemovalReason,
): Promise<RemovedCheckpoints> {
  const { name, project } = run.model;
  const by = whoOf(callerOf(c));
  const removed: { step: number; trash_id: string }[] = [];
  await run.changeCheckpoints(async (checkpoints) => {
    await checkpoints.remove(choose(checkpoints.list()), reason, async ({ directory: path, manifest }) => {
      const { step } = manifest;
      const item = await moveToTrash({
        root: registry.root,
        project,
        kind: 'checkpoint',
        name: `${name}@${step}`,
        path,
        by,
      });
      removed.push({ step, trash_id: item.id });
    });
  });
  announceDeleted(
    registry,
    run,
    removed.map(({ step }) => step),
    reason,
  );
  return { step: run.model.step(), removed };
}

function announceDeleted(
  registry: ModelRegistry,
  run: TrainingRun,
  steps: readonly number[],
  reason: RemovalReason,
): void {
  registry.events.publish({ type: 'checkpoint.deleted', data: { model: run.model.name, steps: [...steps], reason } });
}

function find(run: TrainingRun, step: number): StoredCheckpoint {
  const checkpoint = run.checkpoints.list().find(({ manifest }) => manifest.step === step);
  if (checkpoint !== undefined) return checkpoint;
  throw refuse(404, 'checkpoint_not_found', `checkpoint: must be one of ${run.model.name}, got step ${step}`, 'step');
}

function stepOf({ manifest }: StoredCheckpoint): number {
  return manifest.step;
}

async function describe(run: TrainingRun, checkpoint: StoredCheckpoint): Promise<CheckpointInfo> {
  const { directory, manifest } = checkpoint;
  const { step, files, request, timings } = manifest;
  const recordedAt = timings[0]?.recorded_at;
  return {
    model: run.model.name,
    step,
    parent_step: manifest.parentStep,
    kind: manifest.parentStep === null ? null : (request?.kind ?? 'train'),
    is_newest: step === run.model.step(),
    created_at: typeof recordedAt === 'string' ? recordedAt : await modifiedAt(directory),
    bytes: Object.values(files).reduce((sum, { bytes }) => sum + bytes, 0),
    adapter_sha256: weightsSha256(manifest),
    files: Object.entries(files).map(([name, file]) => ({ name, ...file })),
    metrics: metricsOf(manifest),
    provenance: {
      package_version: manifest.packageVersion,
      base_model: manifest.baseModel ?? run.baseModel,
      base_model_sha256: manifest.baseModelSha256,
      request_sha256: request?.sha256 ?? null,
      data_sha256: manifest.dataSha256 ?? null,
      trained_by: manifest.trainedBy ?? null,
      config: manifest.config,
      forked_from: manifest.forkedFrom ?? null,
    },
  };
}

/** A checkpoint that is being deleted meanwhile has no folder any more. */
async function modifiedAt(directory: string): Promise<string> {
  try {
    return (await stat(directory)).mtime.toISOString();
  } catch (error) {
    if (isMissing(error)) return new Date(0).toISOString();
    throw error;
  }
}
