/** `/healthz` and `/v1/models`. Layer 5. */
import type { Context } from 'hono';
import { messageOf } from '../../core/errors.ts';
import type { EngineState } from '../../engines/engine.ts';
import { refuse } from '../../wire/errors.ts';
import type { WireModel } from '../../wire/openai-response.ts';
import { callerOf, hasScope } from '../security/caller.ts';
import { type ModelLookup, readEngineInfo } from './model-lookup.ts';
import type { ServedModel } from './served-model.ts';

const startedAt = Math.floor(Date.now() / 1000);

/**
 * 200 if every engine runs and answers within two seconds, else 503. Callers who may sample also get the state of each and what it said.
 */
export async function handleHealth(c: Context, lookup: ModelLookup): Promise<Response> {
  const models = await Promise.all([...lookup.models()].map(describeHealth));
  const isHealthy = models.every((model) => model.status === 'ok');
  const status = isHealthy ? 'ok' : 'unavailable';
  return c.json(hasScope(callerOf(c), 'infer') ? { status, models } : { status }, isHealthy ? 200 : 503);
}

interface ModelHealth {
  readonly status: 'ok' | 'unavailable';
  readonly name: string;
  readonly project: string;
  readonly step: number;
  readonly engine_state: EngineState;
  readonly engine?: Readonly<Record<string, number | null | readonly number[]>>;
  readonly error?: string;
}

async function describeHealth(model: ServedModel): Promise<ModelHealth> {
  const state = model.engine.state?.() ?? 'running';
  const identity = { name: model.name, project: model.project, step: model.step(), engine_state: state };
  if (state === 'restarting') {
    return { status: 'unavailable', ...identity, error: 'engine: must be running, is being started again' };
  }
  try {
    const info = await readEngineInfo(model);
    const engine = {
      process_id: model.engine.processId?.() ?? null,
      policy_steps: info.policySteps,
      running_sequences: info.runningSequences,
      waiting_sequences: info.waitingSequences,
      rss_bytes: info.rssBytes,
      sampled_tokens: info.sampledTokens,
    };
    return { status: 'ok', ...identity, engine };
  } catch (error) {
    return { status: 'unavailable', ...identity, error: messageOf(error) };
  }
}

/** Every model as `name` and, for the policy steps that are loaded, as `name@step`. */
async function listModels(lookup: ModelLookup): Promise<readonly WireModel[]> {
  const lists = await Promise.all([...lookup.models()].map(modelIds));
  return lists.flat().map((id) => ({ id, object: 'model', created: startedAt, owned_by: 'art' }));
}

async function modelIds(model: ServedModel): Promise<readonly string[]> {
  try {
    const { policySteps } = await readEngineInfo(model);
    return [model.name, ...policySteps.map((step) => `${model.name}@${step}`)];
  } catch {
    // A model stays listed while its engine is down; `/healthz` says why.
    return [model.name];
  }
}

/** `GET /v1/models`. */
export async function handleModels(c: Context, lookup: ModelLookup): Promise<Response> {
  return c.json({ object: 'list', data: await listModels(lookup) });
}

/** `GET /v1/models/{id}`, for `name` and `name@step`. Throws ApiError 404 naming what is served. */
export async function handleModel(c: Context, lookup: ModelLookup, id: string): Promise<Response> {
  const models = await listModels(lookup);
  const model = models.find((candidate) => candidate.id === id);
  if (model === undefined) {
    const ids = models.map((candidate) => candidate.id).join(', ') || 'none';
    throw refuse(404, 'model_not_found', `model: must be one of ${ids}, got ${JSON.stringify(id)}`, 'model');
  }
  return c.json(model);
}
