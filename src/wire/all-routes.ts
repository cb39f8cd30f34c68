/** Every route of the server, by operation id: what `/openapi.json` describes. Layer 0. */
import { apiRoutes } from './api-routes.ts';
import { inferenceRoutes } from './inference-routes.ts';
import { rolloutRoutes } from './rollout-routes.ts';
import type { RouteSpec } from './route.ts';

export const allRoutes = { ...apiRoutes, ...inferenceRoutes, ...rolloutRoutes } as Readonly<Record<string, RouteSpec>>;
