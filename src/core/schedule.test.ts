import { expect, test } from 'vitest';
import { decayingSchedule, linearSchedule, type ScheduleOptions } from './schedule.ts';

const rates = (options: ScheduleOptions): number[] =>
  Array.from({ length: options.totalSteps }, (_, step) => linearSchedule(step, options));

test('warm-up starts above 0 and meets the peak', () => {
  expect(rates({ peak: 4, totalSteps: 6, warmupSteps: 3 })).toEqual([1, 2, 3, 4, 2, 0]);
});

test('decay goes from the peak to 0', () => {
  expect(rates({ peak: 4, totalSteps: 5 })).toEqual([4, 3, 2, 1, 0]);
});

test('one step, warm-up as long as the run, and steps after the end', () => {
  expect(rates({ peak: 4, totalSteps: 1 })).toEqual([4]);
  expect(rates({ peak: 4, totalSteps: 3, warmupSteps: 3 })).toEqual([1, 2, 3]);
  expect(linearSchedule(9, { peak: 4, totalSteps: 5 })).toBe(0);
});

test('every update of a decaying schedule learns, and the decay ends after the last', () => {
  const all = (decay: 'linear' | 'cosine' | 'constant', options: ScheduleOptions): number[] =>
    Array.from({ length: options.totalSteps }, (_, step) => decayingSchedule(step, decay, options));
  expect(all('linear', { peak: 4, totalSteps: 4 })).toEqual([4, 3, 2, 1]);
  expect(all('linear', { peak: 4, totalSteps: 5, warmupSteps: 1 })).toEqual([2, 4, 3, 2, 1]);
  expect(all('constant', { peak: 4, totalSteps: 3, warmupSteps: 1 })).toEqual([2, 4, 4]);
  const cosine = all('cosine', { peak: 4, totalSteps: 4 });
  expect(cosine[0]).toBe(4);
  expect(cosine[2]).toBeCloseTo(2, 12);
  expect(decayingSchedule(4, 'linear', { peak: 4, totalSteps: 4 })).toBe(0);
});
