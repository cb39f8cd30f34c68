/** Learning-rate schedules. Layer 3. Warm-up never starts at 0, decay ends at `minimum`. */

export interface ScheduleOptions {
  readonly peak: number;
  readonly totalSteps: number;
  readonly warmupSteps?: number;
  readonly minimum?: number;
}

/** Learning rate of step 0 … totalSteps − 1: linear warm-up to `peak`, then what `decay` makes of the progress 0 … 1. */
function scheduled(step: number, options: ScheduleOptions, decay: (progress: number) => number): number {
  const { peak, totalSteps, warmupSteps = 0, minimum = 0 } = options;
  if (step < warmupSteps) return (peak * (step + 1)) / (warmupSteps + 1);
  const progress = Math.min(1, (step - warmupSteps) / Math.max(1, totalSteps - 1 - warmupSteps));
  return minimum + (peak - minimum) * decay(progress);
}

export const constantSchedule = (step: number, options: ScheduleOptions): number => scheduled(step, options, () => 1);

export const linearSchedule = (step: number, options: ScheduleOptions): number =>
  scheduled(step, options, (progress) => 1 - progress);

export const cosineSchedule = (step: number, options: ScheduleOptions): number =>
  scheduled(step, options, (progress) => 0.5 * (1 + Math.cos(Math.PI * progress)));
