import { expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { iterateDataset } from './iterate-dataset.ts';

const items = ['a', 'b', 'c', 'd', 'e', 'f', 'g'];

test('each epoch has every item once, in an order of its own', () => {
  const steps = [...iterateDataset(items, { groupsPerStep: 3, epochs: 2, seed: 5 })];
  expect(steps.map(({ step, epoch, epochStep, items: { length } }) => [step, epoch, epochStep, length])).toEqual([
    [0, 0, 0, 3],
    [1, 0, 1, 3],
    [2, 0, 2, 1],
    [3, 1, 0, 3],
    [4, 1, 1, 3],
    [5, 1, 2, 1],
  ]);
  const [first, second] = [steps.slice(0, 3), steps.slice(3)].map((part) => part.flatMap((step) => step.items));
  expect([...(first ?? [])].sort()).toEqual(items);
  expect([...(second ?? [])].sort()).toEqual(items);
  expect(first).not.toEqual(second);
});

test('from any step on it yields exactly what an uninterrupted run would', () => {
  const options = { groupsPerStep: 2, epochs: 3, seed: 1 };
  const whole = [...iterateDataset(items, options)];
  for (let initialStep = 0; initialStep <= whole.length + 1; initialStep++) {
    expect([...iterateDataset(items, { ...options, initialStep })]).toEqual(whole.slice(initialStep));
  }
});

test('the seed decides the order; null keeps that of the items', () => {
  const order = (seed: number | null): string[] =>
    [...iterateDataset(items, { seed, groupsPerStep: 7 })].flatMap((step) => step.items);
  expect(order(1)).toEqual(order(1));
  expect(order(1)).not.toEqual(order(2));
  expect(order(null)).toEqual(items);
});

test('senseless options are refused', () => {
  expect(() => [...iterateDataset([])]).toThrow(ConfigError);
  expect(() => [...iterateDataset(items, { groupsPerStep: 0 })]).toThrow(ConfigError);
  expect(() => [...iterateDataset(items, { initialStep: -1 })]).toThrow(ConfigError);
});
