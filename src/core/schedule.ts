/** Learning-rate schedules of supervised training. Layer 0. Who trains a policy by reward gives each `train` call its own rate. */

export interface ScheduleOptions {
  readonly peak: number;
  readonly totalSteps: number;
  readonly warmupSteps?: number;
}

/** Learning rate of step 0 … totalSteps − 1: linear warm-up to `peak`, never from 0, then linear decay, 0 at the last step and after it. */
export function linearSchedule(step: number, { peak, totalSteps, warmupSteps = 0 }: ScheduleOptions): number {
  if (step < warmupSteps) return (peak * (step + 1)) / (warmupSteps + 1);
  const progress = Math.min(1, (step - warmupSteps) / Math.max(1, totalSteps - 1 - warmupSteps));
  return peak * (1 - progress);
}

export const decayNames = ['linear', 'cosine', 'constant'] as const;
export type DecayName = (typeof decayNames)[number];

/**
 * Learning rate of step 0 … totalSteps − 1: linear warm-up, never from 0, then a decay that would meet 0 one step after the last, so
 * that every update learns. Source: transformers' `get_scheduler`, but for the first rate.
 */
export function decayingSchedule(
  step: number,
  decay: DecayName,
  { peak, totalSteps, warmupSteps = 0 }: ScheduleOptions,
): number {
  if (step < warmupSteps) return (peak * (step + 1)) / (warmupSteps + 1);
  const progress = Math.min(1, (step - warmupSteps) / Math.max(1, totalSteps - warmupSteps));
  switch (decay) {
    case 'linear':
      return peak * (1 - progress);
    case 'cosine':
      return (peak * (1 + Math.cos(Math.PI * progress))) / 2;
    case 'constant':
      return peak;
  }
}
