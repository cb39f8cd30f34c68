/**
 * Which base models a caller may name. Layer 5. The local user and keys with the scope `admin` may name any path of this machine; other
 * keys ids of the hub, and paths inside the folders that the server's owner lists. Nothing tells them whether another path exists.
 */
import { realpath } from 'node:fs/promises';
import { isAbsolute, relative, resolve, sep } from 'node:path';
import type { Context } from 'hono';
import { ApiError } from '../../core/errors.ts';
import { locateModel } from '../../hub/model-id.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import type { ModelLookup } from '../inference/model-lookup.ts';
import { type Caller, hasScope, securityOf } from '../security/caller.ts';

/** Throws ApiError 403 for a path that the caller may not name. */
export async function checkBaseModel(caller: Caller, baseModel: string, roots: readonly string[]): Promise<void> {
  if (hasScope(caller, 'admin')) return;
  const location = await locateModel(baseModel);
  if (location.kind === 'hub') return;
  for (const root of roots) if (await isInside(location.path, root)) return;
  throw new ApiError(
    'base_model: must be an id of the hub or lie in a folder listed as modelRoots (art serve --model-root), unless the key has ' +
      'the scope admin',
    403,
    { details: { code: 'base_model_not_allowed', param: 'base_model' } },
  );
}

/** `checkBaseModel` of a request's caller; a model that is open already is compared with what it was opened as, so it may be named again. */
export async function guardBaseModel(
  c: Context,
  request: RegisterRequest,
  lookup: Pick<ModelLookup, 'findModel'>,
): Promise<void> {
  const { caller, modelRoots } = securityOf(c);
  if (lookup.findModel(request.name) === undefined) await checkBaseModel(caller, request.base_model, modelRoots);
}

/** First by the text alone, so that nothing outside is touched; then by where links lead. */
async function isInside(path: string, root: string): Promise<boolean> {
  if (!isBelow(path, resolve(root))) return false;
  try {
    return isBelow(await realpath(path), await realpath(root));
  } catch {
    return false;
  }
}

function isBelow(path: string, root: string): boolean {
  const inside = relative(root, resolve(path));
  return inside !== '..' && !inside.startsWith(`..${sep}`) && !isAbsolute(inside);
}
