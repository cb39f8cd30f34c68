/** The two forms of a KL penalty by hand, and where the reference is. */
import { describe, expect, test } from 'vitest';
import { trainingSequence } from '../../../test/server/sequences.ts';
import { CheckpointError } from '../../core/errors.ts';
import type { StoredCheckpoint } from '../store/checkpoints.ts';
import { createReferenceMeter, findReference, holdToReference } from './reference-policy.ts';

const a = trainingSequence({ sampling: [-1, -2], advantages: [0.5, 0.5] }, 1);
const b = trainingSequence({ sampling: [-3], advantages: [-1] }, 2);
const data = new Map([a, b].map((sequence) => [sequence, sequence.datum]));
/** k1 = ln π_old − ln π_ref of the three actions: 0.5, −0.5, 1.5; their mean is 0.5. */
const old = new Map([
  [a, [0, -1, -2]],
  [b, [0, -3]],
]);
const reference = new Map([
  [a, [0, -1.5, -1.5]],
  [b, [0, -4.5]],
]);
const penalty = { weight: 0.2, reference: 'base' } as const;

test('form advantage shifts by weight · (mean k1 − k1), which sums to zero, on actions alone', () => {
  const held = holdToReference(data, reference, old, { ...penalty, form: 'advantage' });
  // 0.2 · (0.5 − 0.5) = 0, 0.2 · (0.5 + 0.5) = 0.2, 0.2 · (0.5 − 1.5) = −0.2
  expect(held.get(a)!.advantages).toEqual([0, 0.5, 0.7]);
  expect(held.get(b)!.advantages).toEqual([0, -1.2]);
  expect(held.get(a)).not.toHaveProperty('referenceLogprobs');
});

test('form loss gives the engine the logprobs of the reference, and leaves advantages', () => {
  const held = holdToReference(data, reference, null, { ...penalty, form: 'loss' });
  for (const sequence of [a, b]) {
    expect(held.get(sequence)).toEqual({ ...sequence.datum, referenceLogprobs: reference.get(sequence) });
  }
});

test('kl_policy_ref is the mean of k3 = r − ln r − 1, r = π_ref / π; kl_penalty that times the weight', () => {
  const meter = createReferenceMeter(reference, 0.2);
  expect(meter.metrics()).toEqual({});
  meter.add(a, [0, -1, -2]);
  meter.add(b, [0, -3]);
  // x = −0.5, 0.5, −1.5: e^x − x − 1 = 0.106531, 0.148721, 0.723130
  const expected = (0.10653066 + 0.14872127 + 0.72313016) / 3;
  expect(meter.metrics()['loss/kl_policy_ref']).toBeCloseTo(expected, 8);
  expect(meter.metrics()['loss/kl_penalty']).toBeCloseTo(0.2 * expected, 8);
});

describe('the reference of a call', () => {
  const stored = (step: number, parentStep: number | null): StoredCheckpoint =>
    ({ directory: `/run/${step}`, manifest: { step, parentStep, files: {} } }) as unknown as StoredCheckpoint;
  /** Steps 3 and 4 were rolled back, and 6 was removed later. */
  const checkpoints = { list: () => [stored(0, null), stored(1, 0), stored(2, 1), stored(5, 2), stored(7, 6)] };

  test.each([
    ['base', 5, { kind: 'base' }],
    [{ step: 2 }, 7, { kind: 'checkpoint', directory: '/run/2' }],
    [{ stepsBack: 1 }, 5, { kind: 'checkpoint', directory: '/run/2' }],
    [{ stepsBack: 2 }, 5, { kind: 'checkpoint', directory: '/run/1' }],
    [{ stepsBack: 9 }, 5, { kind: 'checkpoint', directory: '/run/0' }],
    [{ stepsBack: 3 }, 0, { kind: 'checkpoint', directory: '/run/0' }],
    [{ stepsBack: 2 }, 7, { kind: 'checkpoint', directory: '/run/5' }],
  ] as const)('%o at step %i', async (wanted, step, source) => {
    expect(await findReference(wanted, step, checkpoints)).toEqual(source);
  });

  test.each([
    [{ step: 3 }, 'got step 3; kept are 0, 1, 2, 5, 7. Keep more checkpoints, or take another reference'],
    [{ stepsBack: 1 }, 'got step 6 (1 back from step 7); kept are 0, 1, 2, 5, 7.'],
  ])('%o that is gone is a CheckpointError that says what is kept', async (wanted, message) => {
    const found = findReference(wanted, 7, checkpoints);
    await expect(found).rejects.toBeInstanceOf(CheckpointError);
    await expect(found).rejects.toThrow(message);
  });
});
