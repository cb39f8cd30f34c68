import { expect, test } from 'vitest';
import { constantSchedule, cosineSchedule, linearSchedule, type ScheduleOptions } from './schedule.ts';

const rates = (schedule: (step: number, options: ScheduleOptions) => number, options: ScheduleOptions): number[] =>
  Array.from({ length: options.totalSteps }, (_, step) => schedule(step, options));

test('warm-up starts above 0 and meets the peak', () => {
  const options = { peak: 4, totalSteps: 6, warmupSteps: 3 };
  expect(rates(constantSchedule, options)).toEqual([1, 2, 3, 4, 4, 4]);
  expect(rates(linearSchedule, options)).toEqual([1, 2, 3, 4, 2, 0]);
  expect(rates(linearSchedule, { ...options, minimum: 1 })).toEqual([1, 2, 3, 4, 2.5, 1]);
});

test('decay goes from the peak to the minimum', () => {
  expect(rates(linearSchedule, { peak: 4, totalSteps: 5 })).toEqual([4, 3, 2, 1, 0]);
  const cosine = rates(cosineSchedule, { peak: 4, totalSteps: 5, minimum: 2 });
  // 2 + 2 · (1 + cos(π·progress)) / 2
  const expected = [4, 3 + Math.SQRT1_2, 3, 3 - Math.SQRT1_2, 2];
  for (const [step, rate] of cosine.entries()) expect(rate).toBeCloseTo(expected[step]!, 12);
});

test('one step, warm-up as long as the run, and steps after the end', () => {
  expect(rates(linearSchedule, { peak: 4, totalSteps: 1 })).toEqual([4]);
  expect(rates(cosineSchedule, { peak: 4, totalSteps: 3, warmupSteps: 3 })).toEqual([1, 2, 3]);
  expect(linearSchedule(9, { peak: 4, totalSteps: 5, minimum: 0.5 })).toBe(0.5);
});
