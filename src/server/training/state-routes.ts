/** The state that programs keep with a run, over HTTP. Layer 5. Changes of one run are made one after another. */
import type { Context } from 'hono';
import type { RunState, stateRoutes } from '../../wire/state.ts';
import { pathParam, type RouteHandlers } from '../http/routes.ts';
import { recordChange } from '../security/caller.ts';
import { createSerialQueue, type SerialQueue } from '../store/serial-queue.ts';
import { mergeStates, readState, writeState } from '../store/state-file.ts';
import { targetOf } from './change-records.ts';
import type { ModelRegistry } from './model-registry.ts';
import type { TrainingRun } from './training-run.ts';

export function stateHandlers(registry: ModelRegistry): RouteHandlers<typeof stateRoutes> {
  const queues = new WeakMap<TrainingRun, SerialQueue>();
  const change = async (c: Context, next: (state: RunState) => RunState): Promise<Response> => {
    const run = registry.get(pathParam(c, 'name'));
    const queue = queues.get(run) ?? createSerialQueue();
    queues.set(run, queue);
    return queue(async () => {
      const state = next(await readState(run.directory));
      const after = await writeState(run.directory, state);
      await recordChange(c, { what: 'state.write', target: targetOf(run.model), after });
      return c.json(state);
    });
  };
  return {
    readState: async (c) => c.json(await readState(registry.get(pathParam(c, 'name')).directory)),
    mergeState: (c, { body }) => change(c, (state) => mergeStates(state, body)),
    overwriteState: (c, { body }) => change(c, () => body),
  };
}
