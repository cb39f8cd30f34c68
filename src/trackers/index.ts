/** Public entry `agent-reinforcement-trainer/trackers`: where rows of a run may go. Nothing is sent unless a tracker is given to a model. */
export { type JsonlTrackerOptions, jsonlTracker } from './jsonl.ts';
export { type MlflowTrackerOptions, mlflowTracker } from './mlflow.ts';
export { type TensorBoardTrackerOptions, tensorBoardTracker } from './tensorboard.ts';
export { type WandbTrackerOptions, wandbTracker } from './wandb.ts';
