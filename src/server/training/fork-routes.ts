/** Forks over HTTP. Layer 5. */
import type { checkpointRoutes } from '../../wire/checkpoint-routes.ts';
import { parseWire } from '../../wire/errors.ts';
import { modelName } from '../../wire/training.ts';
import { pathParam, type RouteHandlers } from '../http/routes.ts';
import { recordChange } from '../security/caller.ts';
import { forkRun, readSource } from '../store/fork.ts';
import { createSerialQueue } from '../store/serial-queue.ts';
import { findBaseModel, normalizeBaseModel } from './base-model.ts';
import { guardBaseModel } from './base-model-guard.ts';
import { targetOf } from './change-records.ts';
import type { ModelRegistry } from './model-registry.ts';

export function forkHandlers(registry: ModelRegistry): RouteHandlers<Pick<typeof checkpointRoutes, 'fork'>> {
  const queue = createSerialQueue(); // so that a call sent twice finds what the first one made
  return {
    fork: async (c, { body }) => {
      const name = parseWire(modelName, pathParam(c, 'name')); // becomes a folder name
      const { model, from_project: project = model.project, step = null, not_after_step: notAfterStep = null } = body;
      await guardBaseModel(c, model, registry);
      const request = { ...model, base_model: await normalizeBaseModel(model.base_model) };
      const source = await readSource(registry.root, { project, name });
      // A branch of the hub may have moved on since; the checkpoint is of the commit that it stood for then.
      const commit = source.base_model === request.base_model ? (source.base_model_commit ?? null) : null;
      const base = await findBaseModel(request.base_model, commit, registry.hub);
      const choice = { project, name, step, notAfterStep };
      const { origin, isNew } = await queue(() => forkRun({ root: registry.root, request, base }, choice));
      const after = { from: targetOf({ project, name }, origin.step), adapter_sha256: origin.adapter_sha256 };
      if (isNew) await recordChange(c, { what: 'model.fork', target: targetOf(model, origin.step), after });
      return c.json({ model: model.name, project: model.project, step: origin.step, from: origin, is_new: isNew });
    },
  };
}
