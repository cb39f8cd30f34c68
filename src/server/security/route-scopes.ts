/**
 * Which scope a route needs: one table, read from the top, and a path that is in no row needs `admin`. Layer 5.
 * A new route that only reads a model's state or samples gets a row; anything that is forgotten is closed, not open.
 */
import type { Scope } from './caller.ts';

interface Row {
  readonly methods: readonly string[] | 'any';
  readonly path: RegExp;
  /** `open`: no key needed. */
  readonly scope: Scope | 'open';
  readonly why: string;
}

const reading = ['GET', 'HEAD'] as const;

export const routeScopes: readonly Row[] = [
  { methods: reading, path: /^\/healthz$/, scope: 'open', why: 'load balancers ask; details need infer' },
  {
    methods: reading,
    path: /^\/(openapi\.json|docs(\/.*)?)$/,
    scope: 'open',
    why: 'what every copy of this package says',
  },
  {
    methods: ['DELETE'],
    path: /^(\/rollouts\/[^/]+)?\/v1\/responses\/[^/]+$/,
    scope: 'infer',
    why: 'forgets what the same caller had kept in memory',
  },
  { methods: ['DELETE'], path: /^\//, scope: 'admin', why: 'destroys' },
  {
    methods: 'any',
    path: /^\/api\/(keys|audit|trash)(\/|$)/,
    scope: 'admin',
    why: 'who may do what, and what was done',
  },
  {
    methods: ['POST', 'PUT', 'PATCH'],
    path: /^\/api\/.*\/(rollback|restore|purge|retention)$/,
    scope: 'admin',
    why: 'changes what was trained',
  },
  {
    methods: ['POST'],
    path: /^\/api\/models\/[^/]+\/(push|pull)$/,
    scope: 'admin',
    why: "uses the server's credentials of other services",
  },
  { methods: 'any', path: /^\/v1(\/|$)/, scope: 'infer', why: 'sampling' },
  { methods: 'any', path: /^\/rollouts\/[^/]+\/v1(\/|$)/, scope: 'infer', why: 'sampling' },
  { methods: reading, path: /^\/metrics$/, scope: 'infer', why: 'load, not texts' },
  { methods: reading, path: /^\/api\/health$/, scope: 'infer', why: 'load and steps, not texts' },
  { methods: reading, path: /^\/api\/models(\/[^/]+)?$/, scope: 'infer', why: 'names and steps, not texts' },
  {
    methods: 'any',
    path: /^\/api(\/|$)/,
    scope: 'train',
    why: 'trajectories are texts of others; rewards and groups are what is learned',
  },
];

/** `path` as the router sees it. */
export function scopeOf(method: string, path: string): Scope | 'open' {
  const row = routeScopes.find(({ methods, path: pattern }) => {
    return (methods === 'any' || methods.includes(method)) && pattern.test(path);
  });
  return row?.scope ?? 'admin';
}
