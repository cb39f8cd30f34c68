/** Learning rates of a whole run as a list. Layer 0. */
import { ConfigError } from './errors.ts';
import { refuseUnknownKeys } from './options.ts';
import { type DecayName, decayingSchedule, decayNames } from './schedule.ts';

export interface LearningRateScheduleOptions {
  readonly totalSteps: number;
  /** The highest rate. */
  readonly peak: number;
  /** Default `linear`. */
  readonly decay?: DecayName;
  /** Steps in which the rate rises, never from 0; default 0. */
  readonly warmupSteps?: number;
  /** What the rate decays towards; it would be reached one step after the last. Default 0. */
  readonly minimum?: number;
}

/** The rate of each step: what `trainSft` uses for its updates, for loops that give each `train` call a rate of its own. */
export function createLearningRateSchedule(options: LearningRateScheduleOptions): number[] {
  refuseUnknownKeys('createLearningRateSchedule', options, ['totalSteps', 'peak', 'decay', 'warmupSteps', 'minimum']);
  const { totalSteps, peak, decay = 'linear', warmupSteps = 0, minimum = 0 } = options;
  const rules: readonly (readonly [name: string, value: number, isMet: boolean, rule: string])[] = [
    ['totalSteps', totalSteps, Number.isSafeInteger(totalSteps) && totalSteps > 0, 'an integer ≥ 1'],
    ['peak', peak, peak > 0 && Number.isFinite(peak), 'above 0'],
    ['warmupSteps', warmupSteps, Number.isSafeInteger(warmupSteps) && warmupSteps >= 0, 'an integer ≥ 0'],
    ['minimum', minimum, minimum >= 0 && minimum <= peak, 'between 0 and peak'],
  ];
  for (const [name, value, isMet, rule] of rules) {
    if (!isMet) throw new ConfigError(`createLearningRateSchedule: ${name} must be ${rule}, got ${value}`);
  }
  if (!decayNames.includes(decay)) {
    throw new ConfigError(`createLearningRateSchedule: decay must be one of ${decayNames.join(', ')}, got ${decay}`);
  }
  const shape = { peak: 1, totalSteps, warmupSteps };
  return Array.from({ length: totalSteps }, (_, step) => {
    const share = decayingSchedule(step, decay, shape);
    return step < warmupSteps ? peak * share : minimum + (peak - minimum) * share;
  });
}
