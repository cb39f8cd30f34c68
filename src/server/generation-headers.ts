/** Headers that all inference routes read and write. Layer 5. */
import type { Context } from 'hono';
import type { GenerationStart } from './generation.ts';

/** The rollout that a call belongs to: by header, or by the path form of the base URL. */
export function rolloutIdOf(c: Context): string | null {
  return c.req.param('rolloutId') ?? c.req.header('x-art-rollout') ?? null;
}

/** What every inference route says in headers. */
export function stepHeaders(start: GenerationStart, policyStep: number | null): Record<string, string> {
  return {
    ...(policyStep !== null && { 'x-art-policy-step': String(policyStep) }),
    ...(start.isRerendered && { 'x-art-rerendered': '1' }),
  };
}
