/** Public entry `agent-reinforcement-trainer/engine`: the token-level interface and the embedded engine. */
export { createEmbeddedEngine, type EmbeddedEngineOptions } from './embedded/engine.ts';
export type {
  Datum,
  Engine,
  EngineInfo,
  ForwardBackwardRequest,
  ForwardBackwardResult,
  LogprobsRequest,
  LossConfig,
  OptimStepRequest,
  OptimStepResult,
  SampleEvent,
  SampleRequest,
  SamplingParams,
  TokenAlternative,
} from './engine.ts';
