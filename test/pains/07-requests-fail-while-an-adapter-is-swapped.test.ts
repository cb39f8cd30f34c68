/** Pain 7: rollouts met connection errors while a new adapter was loaded. Here sampling goes on through every publication, each turn on one policy. */
import { expect, test } from 'vitest';
import { sampleChoice, sampleGroup, setUpYesOrNo } from '../yes-or-no.ts';

const setup = setUpYesOrNo();

test('requests that never pause all succeed over four train steps, and see the policies in order', async () => {
  await using backend = setup.openBackend();
  const model = setup.createModel('swapped');
  await model.register(backend);
  let isTraining = true;
  const ask = async (client: number): Promise<number[]> => {
    const steps: number[] = [];
    for (let i = 0; isTraining; i++) steps.push((await sampleChoice(model, client * 1_000 + i)).art?.policy_step ?? -1);
    return steps;
  };
  const clients = [1, 2, 3].map(ask);
  try {
    for (let step = 0; step < 4; step++) await backend.train(model, [await sampleGroup(model, step * 10)]);
  } finally {
    isTraining = false;
  }
  for (const steps of await Promise.all(clients)) {
    expect(steps.length).toBeGreaterThan(4);
    expect(steps).toEqual([...steps].sort((a, b) => a - b));
    expect(steps[0]).toBe(0);
  }
});
