/** Public entry `agent-reinforcement-trainer`: what a user of the SDK needs, and `LocalBackend`, which runs everything on this computer. */
export type { AdvantageKind } from './core/advantage.ts';
export { type DistillConfig, defaultDistillConfig } from './core/distill-config.ts';
export {
  AbortedError,
  ApiError,
  ArtError,
  CheckpointError,
  CollapseError,
  ConfigError,
  DataError,
  EngineError,
  JudgeError,
  RolloutError,
  ShapeError,
  StallError,
  StorageError,
} from './core/errors.ts';
export { createLearningRateSchedule, type LearningRateScheduleOptions } from './core/learning-rates.ts';
export { createRng, deriveSeed, type Rng, shuffle } from './core/rng.ts';
export { defaultSftConfig, type ScheduleSpan, type SftConfig } from './core/sft-config.ts';
export { type TokenPrices, type TokenUsage, tokenCost } from './core/token-cost.ts';
export {
  type AdamOptions,
  defaultTrainConfig,
  type KlPenalty,
  type KlReference,
  type LearningRateSchedule,
  type LengthNormalization,
  type LossDefaults,
  lossDefaults,
  type OverlongOptions,
  type PolicyLossName,
  type RatioRange,
  type TrainConfig,
} from './core/train-config.ts';
export {
  type ChatChoice,
  type ChatMessage,
  type ChoiceOrigin,
  type History,
  type HistoryInit,
  type RolloutException,
  Trajectory,
  TrajectoryGroup,
  type TrajectoryGroupInit,
  type TrajectoryInit,
} from './core/trajectory.ts';
export { LocalBackend, type LocalBackendOptions } from './local-backend.ts';
export { type Agreement, kendallTau } from './rewards/agreement.ts';
export { costReward, latencyReward, lengthPenalty, type Measure } from './rewards/budget-rewards.ts';
export { clipReward, weightedSum } from './rewards/combine.ts';
export {
  createRewardGuard,
  describeGroups,
  type GuardReport,
  type RewardGuard,
  type RewardGuardOptions,
} from './rewards/guard.ts';
export {
  type AlarmKind,
  defaultGuardThresholds,
  type GuardRow,
  type GuardThresholds,
  type RewardAlarm,
} from './rewards/guard-checks.ts';
export {
  type AskOptions,
  createJudge,
  type Judge,
  type JudgeInit,
  type JudgeModel,
  type JudgeOptions,
} from './rewards/judge.ts';
export { JudgeHealth, type JudgeReport } from './rewards/judge-health.ts';
export type { JudgeProtocol } from './rewards/judge-providers.ts';
export type { JudgeProblem } from './rewards/judge-reply.ts';
export type { JudgeReply, JudgeRequest } from './rewards/judge-transport.ts';
export type { JudgedTrajectory } from './rewards/judge-view.ts';
export {
  applyReward,
  type FromScenario,
  perTurn,
  type Reward,
  type RewardResult,
  type RewardValue,
  type SyncReward,
} from './rewards/reward.ts';
export { type RulerGroupOptions, type RulerOptions, ruler, rulerScoreGroup } from './rewards/ruler.ts';
export type { TrajectoryScore } from './rewards/ruler-judging.ts';
export type { ShownToJudge } from './rewards/ruler-options.ts';
export { defaultRubric } from './rewards/ruler-prompt.ts';
export { exactMatch, formatCheck, fuzzyMatch, jsonSchemaReward, type TextOptions } from './rewards/text-rewards.ts';
export { type ExpectedCall, toolCallAccuracy } from './rewards/tool-rewards.ts';
export type {
  Backend,
  HistoryRow,
  InferenceEndpoint,
  ModelState,
  TrainResult,
} from './sdk/backend.ts';
export { type GroupBatch, type GroupBatchesOptions, trajectoryGroupBatches } from './sdk/batches.ts';
export type { CallOptions } from './sdk/call.ts';
export {
  type CaptureContext,
  type CapturedAgent,
  type CaptureOptions,
  type CaptureResult,
  captureRollout,
  captureTrajectory,
  currentTrajectory,
} from './sdk/capture.ts';
export { failedTrajectory } from './sdk/capture-result.ts';
export type {
  CheckpointRange,
  ConfirmOptions,
  DeleteCheckpointsOptions,
  DeletedCheckpoints,
  KeepCheckpoints,
} from './sdk/checkpoints.ts';
export type { DistillCallOptions, DistillOptions, DistillTeacher } from './sdk/distill.ts';
export {
  type DistillSamplesOptions,
  type DistillSamplesResult,
  distillFromSamples,
  type SamplePrompt,
} from './sdk/distill-samples.ts';
export {
  gatherInformativeGroups,
  type InformativeGroups,
  type InformativeGroupsOptions,
} from './sdk/dynamic-sampling.ts';
export type { Loggable } from './sdk/encode.ts';
export {
  type AfterEachResult,
  type GatherGroupsOptions,
  type GroupSource,
  gatherTrajectories,
  gatherTrajectoryGroups,
  type PendingGroup,
  trajectoryGroup,
} from './sdk/gather.ts';
export type { GatherOptions, Rollout, RolloutContext } from './sdk/gather-run.ts';
export type { GatherProgress } from './sdk/gather-tally.ts';
export {
  createGroupRollout,
  type GroupRollout,
  type GroupRolloutOptions,
  type MemberContext,
  type ScenarioContext,
} from './sdk/group-rollout.ts';
export { RemoteBackend, type RemoteBackendOptions } from './sdk/http-backend.ts';
export { type DatasetStep, type IterateDatasetOptions, iterateDataset } from './sdk/iterate-dataset.ts';
export type { FollowOptions, JobFilter } from './sdk/jobs.ts';
export { type LimitConcurrencyOptions, limitConcurrency } from './sdk/limit-concurrency.ts';
export type { MetricOptions, MetricPoint } from './sdk/metric-calls.ts';
export {
  type CostOptions,
  type MeteredResponse,
  MetricsBuilder,
  type MetricsBuilderOptions,
  openMetricsBuilder,
  type Phase,
  readUsage,
} from './sdk/metrics-builder.ts';
export {
  type ChatModel,
  type LogOptions,
  type LoraInit,
  Model,
  type ModelInit,
  TrainableModel,
  type TrainableModelInit,
} from './sdk/model.ts';
export { ModelTrackers, type TrackedRow } from './sdk/model-trackers.ts';
export type { TrainOptions } from './sdk/options.ts';
export { PipelineTrainer } from './sdk/pipeline.ts';
export type { PipelineStep } from './sdk/pipeline-meter.ts';
export type { EvaluationContext, EvaluationResult, PipelineOptions } from './sdk/pipeline-options.ts';
export type { PipelineResult, PipelineStatus } from './sdk/pipeline-run.ts';
export type { StageStatus } from './sdk/pipeline-watch.ts';
export { type RetryOptions, retry } from './sdk/retry.ts';
export type { SftCallOptions, SftConversation, SftExample, SftOptions } from './sdk/sft.ts';
export {
  iterateSftFile,
  type SftFileCallOptions,
  type SftFileOptions,
  type SftFileProgress,
  type SftFileResult,
  trainSftFromFile,
} from './sdk/sft-file.ts';
export type {
  TrackedGroup,
  TrackedHistory,
  TrackedMessage,
  TrackedTexts,
  TrackedTrajectory,
} from './sdk/tracked-groups.ts';
export type {
  FlushOptions,
  Tracker,
  TrackerConfig,
  TrackerHealth,
  TrackerRow,
  TrackerRun,
  TrackerSink,
  TrackerTrajectories,
} from './sdk/tracker.ts';
export { type CreateTrackerOptions, createTracker, type TrackerOptions } from './sdk/tracker-queue.ts';
export type { TrainCallOptions } from './sdk/training-calls.ts';
export type { PullOptions, PushOptions } from './sdk/transfers.ts';
export type {
  Checkpoint,
  CopyProgress,
  CopyResult,
  Fork,
  ForkOrigin,
  ForkSource,
  Job,
  Removed,
  RetentionRule,
  TrashItem,
} from './wire/checkpoint-names.ts';
export type { RunState } from './wire/state.ts';
export type { TrainProgress } from './wire/training.ts';
