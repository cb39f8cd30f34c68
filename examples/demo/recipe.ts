/** Every number of the demo's training, in one place. */

export const starter = {
  width: 128,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  headSize: 32,
  ffWidth: 384,
  maxPositions: 256,
} as const;

export const warmUp = {
  games: 4096,
  trainedTokens: 'all',
  batchSize: 64,
  learningRate: 2e-3,
  warmupSteps: 8,
  weightDecay: 0.01,
} as const;

export const lora = { rank: 16, alpha: 32 } as const;

export const reinforcement = {
  steps: 20,
  groupsPerStep: 32,
  rolloutsPerGroup: 16,
  learningRate: 2e-3,
  /** Share of the learning rate that is left at the last step. */
  finalLearningRate: 0.2,
  gradientSteps: 4,
  maxConcurrency: 128,
} as const;

export const evaluationGames = 400;
