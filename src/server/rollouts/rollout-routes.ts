/** `/api/rollouts`: what the server collected, and what ends a rollout: its reward, or the client that takes its turns. Layer 5. Shapes: `wire/rollouts.ts`. */
import type { Context, Hono } from 'hono';
import { parseWire } from '../../wire/errors.ts';
import {
  type CapturedRollout,
  parseRolloutId,
  type RolloutDetail,
  type RolloutHistory,
  type RolloutSummary,
  rewardRequest,
  rolloutQuery,
} from '../../wire/rollouts.ts';
import { readJson } from '../http/read-json.ts';
import type { ServedModel, StoredCompletion } from '../inference/served-model.ts';
import type { ModelRegistry } from '../training/model-registry.ts';
import { describeHistory, splitHistories } from './rollout-histories.ts';
import { type Rollout, unknownRollout } from './rollouts.ts';

const maxBodyBytes = 2 ** 20;
const defaultLimit = 100;

/** Adds the routes. A rollout that called several models is one of each, and its reward ends all of them. */
export function registerRolloutRoutes(app: Hono, registry: ModelRegistry): void {
  const find = (c: Context): readonly (readonly [ServedModel, Rollout])[] => {
    const id = parseRolloutId(c.req.param('id') ?? '', 'rollout');
    const found = registry.list().flatMap(({ model }) => {
      const rollout = model.completions.rollouts.get(id);
      return rollout === null ? [] : [[model, rollout] as const];
    });
    if (found.length === 0) throw unknownRollout(id);
    return found;
  };
  app.post('/api/rollouts/:id/reward', async (c) => {
    const request = parseWire(rewardRequest, await readJson(c, maxBodyBytes));
    const { reward, metrics = {}, metadata = {}, group = null, replace = false } = request;
    const outcome = { reward, metrics, metadata, group };
    const ended = await Promise.all(
      find(c).map(async ([model, { id }]) =>
        summaryOf(model, await model.completions.rollouts.finish(id, outcome, replace)),
      ),
    );
    for (const { id: rolloutId, model } of ended) {
      registry.events.publish({ type: 'rollout.finished', data: { model, rollout_id: rolloutId, reward } });
    }
    return c.json({ ...ended[0], models: ended.map(({ model }) => model) });
  });
  app.post('/api/rollouts/:id/capture', (c) => {
    const found = find(c);
    const models = found.map(([model, { id }]) => ({
      model: model.name,
      histories: historiesOf(model.completions.rollouts.capture(id)),
    }));
    const answer: CapturedRollout = { id: found[0]![1].id, models };
    return c.json(answer);
  });
  app.get('/api/rollouts/:id', (c) => {
    const details = find(c).map(([model, rollout]) => detailOf(model, rollout));
    return c.json({ ...details[0], models: details.map(({ model, histories }) => ({ model, histories })) });
  });
  app.get('/api/rollouts', (c) => {
    const { state, group, model: name, limit = defaultLimit } = parseWire(rolloutQuery, c.req.query());
    const filter = { ...(state !== undefined && { state }), ...(group !== undefined && { group }) };
    const models = registry.list().map(({ model }) => model);
    const rollouts = models
      .filter((model) => name === undefined || model.name === name)
      .flatMap((model) =>
        model.completions.rollouts
          .list(filter)
          .slice(0, limit)
          .map((rollout) => summaryOf(model, rollout)),
      )
      .sort((a, b) => b.started_at - a.started_at)
      .slice(0, limit);
    return c.json({ rollouts });
  });
}

function summaryOf({ name }: ServedModel, rollout: Rollout): RolloutSummary {
  const { id, state, calls, startedAt, lastCallAt, outcome, trainedStep } = rollout;
  return {
    id,
    model: name,
    state,
    calls: calls.length,
    started_at: startedAt / 1000,
    last_call_at: lastCallAt / 1000,
    finished_at: outcome === null ? null : outcome.finishedAt / 1000,
    reward: outcome?.reward ?? null,
    metrics: { ...outcome?.metrics },
    metadata: { ...outcome?.metadata },
    group: outcome?.group ?? null,
    trained_step: trainedStep,
  };
}

/** Without histories where turns are not kept any more. */
function detailOf(model: ServedModel, rollout: Rollout): RolloutDetail {
  return { ...summaryOf(model, rollout), histories: historiesOf(model.completions.rollouts.turns(rollout) ?? []) };
}

function historiesOf(turns: readonly StoredCompletion[]): RolloutHistory[] {
  return splitHistories(turns).map((history) => describeHistory(history, turns));
}
