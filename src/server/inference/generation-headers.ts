/** Headers that all inference routes read and write. Layer 5. */
import type { Context } from 'hono';
import type { GenerationRequest } from '../../core/generation.ts';
import { refuse } from '../../wire/errors.ts';
import { parseRolloutId } from '../../wire/rollouts.ts';
import { callerOf } from '../security/caller.ts';
import type { GenerationStart } from './generation.ts';

/** The rollout that a call belongs to: by header, or by the path form of the base URL. Throws ApiError 400 for what is no id. */
function rolloutIdOf(c: Context): string | null {
  const [byPath, byHeader] = [c.req.param('rolloutId'), c.req.header('x-art-rollout')];
  const id = byPath ?? byHeader;
  if (id === undefined) return null;
  if (byPath !== undefined && byHeader !== undefined && byPath !== byHeader) {
    const message = `x-art-rollout: must be the rollout of the path, ${JSON.stringify(byPath)}, got ${JSON.stringify(byHeader)}`;
    throw refuse(400, 'invalid_value', message, 'x-art-rollout');
  }
  return parseRolloutId(id, byPath === undefined ? 'x-art-rollout' : 'rollout');
}

/** Whose call it is: what every inference route adds to what its body says. Throws ApiError 400 for what is no id of a rollout. */
export function sourceOf(c: Context): Pick<GenerationRequest, 'rolloutId' | 'keyId'> {
  const caller = callerOf(c);
  return { rolloutId: rolloutIdOf(c), keyId: caller.kind === 'key' ? caller.id : null };
}

/** What every inference route says in headers. */
export function stepHeaders(start: GenerationStart, policyStep: number | null): Record<string, string> {
  return {
    ...(policyStep !== null && { 'x-art-policy-step': String(policyStep) }),
    ...(start.isRerendered && { 'x-art-rerendered': '1' }),
  };
}
