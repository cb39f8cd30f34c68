/** Every number of the demo's training, in one place. */

export const starter = {
  width: 192,
  layers: 2,
  heads: 6,
  kvHeads: 3,
  headSize: 32,
  ffWidth: 768,
  maxPositions: 256,
} as const;

export const warmUp = {
  games: 2000,
  /** Boards are learned a little as well: it is how the model learns to read them. */
  promptWeight: 0.2,
  batchSize: 8,
  learningRate: 3e-3,
  warmupSteps: 20,
  weightDecay: 0,
} as const;

export const lora = { rank: 16, alpha: 64 } as const;

export const reinforcement = {
  steps: 42,
  groupsPerStep: 8,
  rolloutsPerGroup: 32,
  learningRate: 1.2e-3,
  /** Share of the learning rate that is left at the last step. */
  finalLearningRate: 0.1,
  /** Many small clipped updates: a new habit needs their number more than their size. */
  loss: 'ppo',
  clipLow: 0.2,
  clipHigh: 0.3,
  gradientSteps: 16,
  epochs: 1,
  /** The last moves of a game decide most while tactics are learned, and less when openings are. */
  turnDiscount: { first: 0.7, last: 0.9 },
  entropyBonus: 0.01,
  maxConcurrency: 128,
} as const;

export const evaluationGames = 400;
