/** The state that a program keeps with a model's run, through the training API. Layer 5. */
import { DataError } from '../core/errors.ts';
import { type RunState, runState } from '../wire/state.ts';
import { type Api, type CallOptions, modelPath } from './call.ts';

export function callReadState(api: Api, name: string, { signal }: CallOptions): Promise<RunState> {
  const path = `${modelPath(name)}/state`;
  return api.sendIdempotent({ what: `reading the state of model ${name}`, method: 'GET', path, signal }, runState);
}

export async function callMergeState(
  api: Api,
  name: string,
  patch: RunState,
  { signal }: CallOptions,
): Promise<RunState> {
  checkJson(patch, `mergeState of model ${name}`);
  const path = `${modelPath(name)}/state`;
  const call = { what: `merging into the state of model ${name}`, method: 'POST', path, body: patch, signal } as const;
  return api.send(call, runState);
}

export async function callOverwriteState(
  api: Api,
  name: string,
  state: RunState,
  { signal }: CallOptions,
): Promise<void> {
  checkJson(state, `overwriteState of model ${name}`);
  const path = `${modelPath(name)}/state`;
  const call = { what: `writing the state of model ${name}`, method: 'PUT', path, body: state, signal } as const;
  await api.sendIdempotent(call, runState);
}

/** Throws DataError for what JSON would change or drop silently: what is read later must be what was written. */
function checkJson(value: unknown, where: string): void {
  if (value === null || typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value)) return;
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) checkJson(item, `${where}[${index}]`);
    return;
  }
  if (typeof value === 'object' && [Object.prototype, null].includes(Object.getPrototypeOf(value))) {
    for (const [key, item] of Object.entries(value)) if (item !== undefined) checkJson(item, `${where}.${key}`);
    return;
  }
  const got = typeof value === 'object' ? `a ${value.constructor.name}` : String(value);
  throw new DataError(
    `${where}: must be JSON (objects, arrays, strings, finite numbers, booleans, null), got ${got.slice(0, 80)}`,
  );
}
