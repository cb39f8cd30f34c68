/** Learning-rate schedule of fine-tuning. Layer 3. Left out: other decays; who trains a policy gives each `train` call its own rate. */

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
