import { expect, test } from 'vitest';
import { expectClose } from '../../test/tolerance.ts';
import { EngineError } from '../core/errors.ts';
import { createRng } from '../core/rng.ts';
import type { Parameter } from '../nn/parameters.ts';
import { type AdamWSettings, adamWUpdate, createAdamWState, globalNorm } from './optimizer.ts';

const settings: AdamWSettings = {
  learningRate: 0.5,
  beta1: 0.5,
  beta2: 0.75,
  epsilon: 0,
  weightDecay: 0,
  maxGradNorm: 0,
};

const one = (...values: number[]): Map<string, Parameter> =>
  new Map([['w', { shape: [values.length], data: Float32Array.from(values) }]]);
const grads = (...values: number[]): Map<string, Float32Array> => new Map([['w', Float32Array.from(values)]]);

/** A value or two within the rounding of one float32 store. */
const stored = { rtol: 1.2e-7, atol: 0 };

test('two steps worked out by hand', () => {
  const parameters = one(1, 1);
  const state = createAdamWState(parameters);
  // Step 1: m = 0.5·g, v = 0.25·g²; m̂ = g, v̂ = g²; so the step is 0.5·sign(g).
  expect(adamWUpdate(parameters, grads(2, -4), state, settings)).toBeCloseTo(Math.sqrt(20), 12);
  expect([...parameters.get('w')!.data]).toEqual([0.5, 1.5]);
  expect([...state.moments.get('w')!.first]).toEqual([1, -2]);
  expect([...state.moments.get('w')!.second]).toEqual([1, 4]);
  // Step 2, g = 1: m = 0.5·1 + 0.5·1 = 1, m̂ = 1 / 0.75; v = 0.75·1 + 0.25·1 = 1, v̂ = 1 / 0.4375.
  // g = 0: m = −1, m̂ = −1 / 0.75; v = 3, v̂ = 3 / 0.4375.
  adamWUpdate(parameters, grads(1, 0), state, settings);
  expect(state.updates).toBe(2);
  expect([...state.moments.get('w')!.first]).toEqual([1, -1]);
  expect([...state.moments.get('w')!.second]).toEqual([1, 3]);
  const expected = [0.5 - (0.5 / 0.75) * Math.sqrt(0.4375), 1.5 + (0.5 / 0.75) * Math.sqrt(0.4375 / 3)];
  expectClose(parameters.get('w')!.data, expected, stored);
});

test('weight decay shrinks the weight apart from the gradient', () => {
  const parameters = one(2);
  adamWUpdate(parameters, grads(0), createAdamWState(parameters), {
    ...settings,
    epsilon: 1e-8,
    learningRate: 0.25,
    weightDecay: 0.5,
  });
  expect([...parameters.get('w')!.data]).toEqual([2 * (1 - 0.25 * 0.5)]);
});

test('epsilon is added after the bias correction of √v', () => {
  const parameters = one(0);
  adamWUpdate(parameters, grads(3), createAdamWState(parameters), { ...settings, epsilon: 1 });
  // m̂ = 3, √v̂ = 3: 0.5 · 3 / (3 + 1)
  expect([...parameters.get('w')!.data]).toEqual([-0.375]);
});

/** `torch.optim.AdamW`, line by line as its documentation states the algorithm, in float64. */
function torchAdamW(theta: number, gradients: readonly number[], options: AdamWSettings): number {
  let [m, v] = [0, 0];
  for (const [i, g] of gradients.entries()) {
    const t = i + 1;
    theta = theta - options.learningRate * options.weightDecay * theta;
    m = options.beta1 * m + (1 - options.beta1) * g;
    v = options.beta2 * v + (1 - options.beta2) * g ** 2;
    const mHat = m / (1 - options.beta1 ** t);
    const vHat = v / (1 - options.beta2 ** t);
    theta = theta - (options.learningRate * mHat) / (Math.sqrt(vHat) + options.epsilon);
  }
  return theta;
}

test('twenty random steps follow the formula in the documentation of PyTorch', () => {
  const options = { ...settings, learningRate: 1e-2, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weightDecay: 0.1 };
  const rng = createRng('adamw');
  const initial = Float32Array.from({ length: 10 }, rng.normal);
  const gradients_S = Array.from({ length: 20 }, () => Float32Array.from({ length: 10 }, rng.normal));
  const parameters = one(...initial);
  const state = createAdamWState(parameters);
  for (const gradient of gradients_S) adamWUpdate(parameters, new Map([['w', gradient]]), state, options);
  const expected = Array.from(initial, (value, i) =>
    torchAdamW(
      value,
      gradients_S.map((gradient) => gradient[i]!),
      options,
    ),
  );
  // Weights and moments are stored as float32 twenty times.
  expectClose(parameters.get('w')!.data, expected, { rtol: 1e-6, atol: 1e-6 });
});

test('clipping scales all gradients together, and only above the limit', () => {
  const gradients = new Map([
    ['a', Float32Array.of(3, 0)],
    ['b', Float32Array.of(-4)],
  ]);
  expect(globalNorm(gradients)).toBe(5);
  const parameters = new Map([
    ['a', { shape: [2], data: new Float32Array(2) }],
    ['b', { shape: [1], data: new Float32Array(1) }],
  ]);
  const state = createAdamWState(parameters);
  expect(adamWUpdate(parameters, gradients, state, { ...settings, epsilon: 1, maxGradNorm: 2.5 })).toBe(5);
  // Half of every gradient: m = 0.5·g/2.
  expect([...state.moments.get('a')!.first]).toEqual([0.75, 0]);
  expect([...state.moments.get('b')!.first]).toEqual([-1]);
  const untouched = createAdamWState(parameters);
  adamWUpdate(parameters, gradients, untouched, { ...settings, epsilon: 1, maxGradNorm: 5 });
  expect([...untouched.moments.get('a')!.first]).toEqual([1.5, 0]);
});

test('the global norm does not overflow where squares of float32 would', () => {
  expect(globalNorm(new Map([['a', Float32Array.of(1e30)]]))).toBeCloseTo(1e30, -23);
  expect(globalNorm(new Map())).toBe(0);
});

test.each([Number.NaN, Number.POSITIVE_INFINITY])('a gradient of %d changes nothing', (bad) => {
  const parameters = one(1, 2);
  const state = createAdamWState(parameters);
  adamWUpdate(parameters, grads(1, 1), state, settings);
  const before = structuredClone({ parameters, state });
  expect(() => adamWUpdate(parameters, grads(1, bad), state, { ...settings, maxGradNorm: 1 })).toThrow(EngineError);
  expect(() => adamWUpdate(parameters, grads(1, bad), state, settings)).toThrow(
    `optimizer: gradient norm must be finite, got ${bad}`,
  );
  expect({ parameters, state }).toEqual(before);
});

test.each([
  [{ learningRate: Number.NaN }, 'learningRate must be finite and at least 0, got NaN'],
  [{ learningRate: -1 }, 'learningRate must be finite and at least 0, got -1'],
  [{ weightDecay: Number.NaN }, 'weightDecay must be finite and at least 0, got NaN'],
  [{ epsilon: Number.POSITIVE_INFINITY }, 'epsilon must be finite and at least 0, got Infinity'],
  [{ maxGradNorm: Number.NaN }, 'maxGradNorm must be finite and at least 0, got NaN'],
  [{ beta1: 1 }, 'beta1 must be at least 0 and below 1, got 1'],
  [{ beta2: Number.NaN }, 'beta2 must be at least 0 and below 1, got NaN'],
])('refuses %o and changes nothing', (wrong, message) => {
  const parameters = one(1);
  const state = createAdamWState(parameters);
  expect(() => adamWUpdate(parameters, grads(1), state, { ...settings, ...wrong })).toThrow(message);
  expect(state.updates).toBe(0);
  expect([...parameters.get('w')!.data]).toEqual([1]);
});
