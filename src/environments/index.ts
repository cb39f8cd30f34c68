/** Public entry `agent-reinforcement-trainer/environments`: environments of others, as OpenEnv's and Gym-like ones, as rollouts. */
export type { Environment, EnvironmentCallOptions, StepResult } from './environment.ts';
export { type EnvironmentRolloutOptions, environmentRollout } from './environment-rollout.ts';
export { createHttpEnvironment, type HttpEnvironmentOptions } from './http-environment.ts';
export { type ConnectEnvironmentOptions, connectEnvironment, WebSocketEnvironment } from './websocket-environment.ts';
