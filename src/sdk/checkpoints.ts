/**
 * Checkpoints and the trash through the training API. Layer 5.
 * What destroys needs `{ confirm: true }`; without it nothing happens, and the error says what would be lost.
 */
import type * as z from 'zod';
import { average } from '../core/advantage.ts';
import { ConfigError, DataError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import {
  type Checkpoint,
  type Fork,
  type ForkSource,
  fromCheckpointInfo,
  fromForkResult,
  fromRemoved,
  fromRetention,
  fromTrashItem,
  type Removed,
  type RetentionRule,
  type TrashItem,
  toForkRequest,
  toRetention,
} from '../wire/checkpoint-names.ts';
import {
  checkpointInfo,
  checkpointList,
  deletedModel,
  forkRequest,
  forkResult,
  removedCheckpoints,
  retention,
  trashItem,
  trashList,
} from '../wire/checkpoints.ts';
import { describeIssue } from '../wire/errors.ts';
import type { RegisteredModel } from '../wire/training-names.ts';
import { type Api, type Call, type CallOptions, modelPath } from './call.ts';
import { callMetric, type MetricPoint } from './metric-calls.ts';

/** For what destroys: `confirm: true` does it, anything else asks what would be lost and throws that. */
export interface ConfirmOptions extends CallOptions {
  readonly confirm?: boolean | undefined;
}

export interface CheckpointRange extends CallOptions {
  /** First and last step; default all. */
  readonly from?: number | undefined;
  readonly to?: number | undefined;
}

/** Which checkpoints stay when the others are deleted. The newest, which is served, always does. */
export interface KeepCheckpoints {
  /** Those with the best values of a metric of the history; default one, by `val/reward`. Null: none for that. */
  readonly best?: {
    /** Default `val/reward`. */
    readonly metric?: string;
    /** Default `max`. */
    readonly mode?: 'max' | 'min';
    /** Default 1. */
    readonly count?: number;
  } | null;
  /** So many of the newest; default 1. */
  readonly last?: number;
  /** Single steps, whatever their metrics. */
  readonly steps?: readonly number[];
}

export interface DeleteCheckpointsOptions extends ConfirmOptions {
  readonly keep?: KeepCheckpoints;
}

export interface DeletedCheckpoints {
  readonly kept: readonly number[];
  readonly removed: Removed['removed'];
}

export async function callListCheckpoints(api: Api, name: string, range: CheckpointRange): Promise<Checkpoint[]> {
  refuseUnknownKeys('listCheckpoints', range, ['from', 'to', 'signal']);
  const checkpoints: Checkpoint[] = [];
  // The server tells a bounded number of checkpoints at a time.
  for (let from: number | null = range.from ?? 0; from !== null; ) {
    const query = new URLSearchParams({ from: String(from), ...(range.to !== undefined && { to: String(range.to) }) });
    const path = `${modelPath(name)}/checkpoints?${query}`;
    const call = { what: `checkpoints of model ${name}`, method: 'GET', path, signal: range.signal } as const;
    const page: z.infer<typeof checkpointList> = await api.sendIdempotent(call, checkpointList);
    checkpoints.push(...page.checkpoints.map(fromCheckpointInfo));
    from = page.next_from;
  }
  return checkpoints;
}

export async function callCheckpoint(
  api: Api,
  name: string,
  step: number,
  { signal }: CallOptions,
): Promise<Checkpoint> {
  const path = `${modelPath(name)}/checkpoints/${step}`;
  const call = { what: `checkpoint ${step} of model ${name}`, method: 'GET', path, signal } as const;
  return fromCheckpointInfo(await api.sendIdempotent(call, checkpointInfo));
}

/** The server hashes the base model and copies a checkpoint meanwhile. */
const COPY_TIMEOUT_MS = 600_000;

/** Moves to the trash what `keep` does not name. Throws DataError if no step has the metric: nothing is deleted then. */
export async function callDeleteCheckpoints(
  api: Api,
  name: string,
  options: DeleteCheckpointsOptions,
): Promise<DeletedCheckpoints> {
  refuseUnknownKeys('deleteCheckpoints', options, ['keep', 'confirm', 'signal']);
  const { keep = {}, confirm = false, signal } = options;
  refuseUnknownKeys('deleteCheckpoints.keep', keep, ['best', 'last', 'steps']);
  refuseUnknownKeys('deleteCheckpoints.keep.best', keep.best ?? {}, ['metric', 'mode', 'count']);
  const metric = keep.best === null ? null : (keep.best?.metric ?? 'val/reward');
  const steps = (await callListCheckpoints(api, name, { signal })).map(({ step }) => step);
  const points = metric === null ? [] : await callMetric(api, name, metric, { signal });
  if (metric !== null && points.length === 0) {
    throw new DataError(
      `deleteCheckpoints of model ${name}: metric ${metric} must have been logged for at least one step, got none; ` +
        'nothing was deleted; name another by keep.best.metric, or say keep: { best: null }',
    );
  }
  const kept = chooseKept(steps, points, keep);
  const unwanted = steps.filter((step) => !kept.includes(step));
  if (unwanted.length > 0 && !confirm) {
    throw new ConfigError(
      `deleteCheckpoints of model ${name}: needs { confirm: true }, since steps ${unwanted.join(', ')} would move to the trash; ` +
        `kept are ${kept.join(', ')}`,
      { details: { code: 'confirmation_required', steps: unwanted, kept } },
    );
  }
  const removed: Removed['removed'][number][] = [];
  for (const step of unwanted) {
    removed.push(...(await callDeleteCheckpoint(api, name, step, { confirm: true, signal })).removed);
  }
  return { kept, removed };
}

/** Of two steps with the same value the later is the better one; a step that was evaluated several times has the mean. */
export function chooseKept(
  steps: readonly number[],
  points: readonly MetricPoint[],
  { best = {}, last = 1, steps: named = [] }: KeepCheckpoints,
): number[] {
  const { mode = 'max', count = 1 } = best ?? {};
  requireIntegers('deleteCheckpoints', { 'keep.last': last, 'keep.best.count': count }, 1);
  const sorted = [...steps].sort((a, b) => a - b);
  const kept = new Set([...sorted.slice(-last), ...named]);
  if (best !== null) {
    const means = new Map(sorted.map((step) => [step, meanOf(points.filter((point) => point.step === step))]));
    const sign = mode === 'max' ? -1 : 1;
    const value = (step: number): number => means.get(step) as number;
    const known = sorted.filter((step) => means.get(step) !== null);
    for (const step of known.sort((a, b) => sign * (value(a) - value(b)) || b - a).slice(0, count)) kept.add(step);
  }
  return sorted.filter((step) => kept.has(step));
}

function meanOf(points: readonly MetricPoint[]): number | null {
  return points.length === 0 ? null : average(points.map(({ value }) => value));
}

async function callDeleteCheckpoint(api: Api, name: string, step: number, options: ConfirmOptions): Promise<Removed> {
  const path = `${modelPath(name)}/checkpoints/${step}`;
  const call = { what: `deletion of checkpoint ${step} of model ${name}`, method: 'DELETE', path } as const;
  return fromRemoved(await sendConfirmed(api, call, removedCheckpoints, options));
}

/** Makes a new model of another's checkpoint; it is registered afterwards like any other. */
export async function callFork(
  api: Api,
  model: RegisteredModel,
  source: ForkSource,
  { signal }: CallOptions,
): Promise<Fork> {
  refuseUnknownKeys('fork', source, ['fromModel', 'fromProject', 'step', 'notAfterStep']);
  const body = toForkRequest(model, source);
  const checked = forkRequest.safeParse(body);
  if (!checked.success) throw new ConfigError(`fork: ${describeIssue(checked.error.issues[0], body).message}`);
  const what = `fork of model ${source.fromModel} as ${model.name}`;
  const path = `${modelPath(source.fromModel)}/fork`;
  const call = { what, method: 'POST', path, body: checked.data, timeoutMs: COPY_TIMEOUT_MS, signal } as const;
  return fromForkResult(await api.sendIdempotent(call, forkResult));
}

export async function callRollback(api: Api, name: string, step: number, options: ConfirmOptions): Promise<Removed> {
  const path = `${modelPath(name)}/rollback`;
  const call = { what: `rollback of model ${name} to step ${step}`, method: 'POST', path, body: { step } } as const;
  return fromRemoved(await sendConfirmed(api, call, removedCheckpoints, options));
}

export async function callRetention(api: Api, name: string, { signal }: CallOptions): Promise<RetentionRule> {
  const path = `${modelPath(name)}/retention`;
  const call = { what: `retention of model ${name}`, method: 'GET', path, signal } as const;
  return fromRetention(await api.sendIdempotent(call, retention));
}

export async function callSetRetention(
  api: Api,
  name: string,
  rule: Partial<RetentionRule>,
  options: ConfirmOptions,
): Promise<RetentionRule> {
  refuseUnknownKeys('setRetention', rule, ['keepLast', 'keepBest']);
  const path = `${modelPath(name)}/retention`;
  const body = toRetention({ keepLast: null, keepBest: null, ...rule });
  const call = { what: `retention of model ${name}`, method: 'PUT', path, body } as const;
  return fromRetention(await sendConfirmed(api, call, retention, options));
}

/** Returns the id under which the run lies in the trash. */
export async function callDeleteModel(api: Api, name: string, options: ConfirmOptions): Promise<{ trashId: string }> {
  const call = { what: `deletion of model ${name}`, method: 'DELETE', path: modelPath(name) } as const;
  return { trashId: (await sendConfirmed(api, call, deletedModel, options)).trash_id };
}

export async function callListTrash(api: Api, { signal }: CallOptions): Promise<TrashItem[]> {
  const call = { what: 'list of the trash', method: 'GET', path: '/api/trash', signal } as const;
  return (await api.sendIdempotent(call, trashList)).items.map(fromTrashItem);
}

export async function callRestoreTrash(api: Api, id: string, { signal }: CallOptions): Promise<TrashItem> {
  const path = `/api/trash/${encodeURIComponent(id)}/restore`;
  return fromTrashItem(
    await api.send({ what: `restoring of ${id} from the trash`, method: 'POST', path, signal }, trashItem),
  );
}

export async function callPurgeTrash(api: Api, id: string, options: ConfirmOptions): Promise<TrashItem> {
  const path = `/api/trash/${encodeURIComponent(id)}`;
  return fromTrashItem(
    await sendConfirmed(api, { what: `purging of ${id}`, method: 'DELETE', path }, trashItem, options),
  );
}

function sendConfirmed<T>(api: Api, call: Call, schema: z.ZodType<T>, options: ConfirmOptions): Promise<T> {
  refuseUnknownKeys(call.what, options, ['confirm', 'signal']);
  return api.sendConfirmed({ ...call, signal: options.signal }, schema, options.confirm === true);
}
