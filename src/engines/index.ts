/** Public entry `agent-reinforcement-trainer/engine`: the token-level interface and the embedded engine. */

export { type StarterModelOptions, writeStarterModel } from '../formats/starter-model.ts';
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
export { type FineTuneOptions, type FineTuneProgress, type FineTuneResult, fineTuneModel } from './fine-tune.ts';
