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
  games: 3200,
  /** Boards are learned a little as well: it is how the model learns to read them. */
  promptWeight: 0.2,
  batchSize: 8,
  learningRate: 3e-3,
  warmupSteps: 20,
  weightDecay: 0,
} as const;

export const lora = { rank: 16, alpha: 32 } as const;

export const reinforcement = {
  steps: 16,
  groupsPerStep: 16,
  rolloutsPerGroup: 32,
  learningRate: 1.5e-3,
  /** Share of the learning rate that is left at the last step. */
  finalLearningRate: 0.1,
  gradientSteps: 4,
  /** The last move of a game decides more than the first. */
  turnDiscount: 0.6,
  entropyBonus: 0.01,
  maxConcurrency: 128,
} as const;

export const evaluationGames = 400;
