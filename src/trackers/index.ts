/** Public entry `agent-reinforcement-trainer/trackers`: where rows of a run may go. Nothing is sent unless a tracker is given to a model. */
export { type JsonlTrackerOptions, jsonlTracker } from './jsonl.ts';
export { type LangfuseTrackerOptions, langfuseTracker } from './langfuse.ts';
export { type MlflowTrackerOptions, mlflowTracker } from './mlflow.ts';
export { type OpenPipeTrackerOptions, openPipeTracker } from './openpipe.ts';
export { type OtelTrackerOptions, otelTracker } from './otel.ts';
export { type TensorBoardTrackerOptions, tensorBoardTracker } from './tensorboard.ts';
export { type WandbTrackerOptions, wandbTracker } from './wandb.ts';
export { type WeaveTrackerOptions, weaveTracker } from './weave.ts';
