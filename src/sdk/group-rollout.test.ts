import { expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { Trajectory } from '../core/trajectory.ts';
import { createGroupRollout } from './group-rollout.ts';

const context = { signal: new AbortController().signal, index: 3, seed: 7 };

test('members have seeds of their own, failures are recorded, metadata comes from the scenario', async () => {
  const seeds: number[] = [];
  const rollout = createGroupRollout<object>(
    async (_scenario, { seed, member }) => {
      seeds.push(seed);
      if (member === 1) throw new TypeError('no board');
      return new Trajectory({ reward: member });
    },
    { groupSize: 3 },
  );
  const group = await rollout({ metadata: { level: 2, parts: [1] } }, context);
  expect(group.trajectories.map(({ reward }) => reward)).toEqual([0, 2]);
  expect(group.exceptions).toMatchObject([{ type: 'TypeError', message: 'no board' }]);
  expect(group.metadata).toEqual({ scenario_level: 2 });
  expect(new Set(seeds).size).toBe(3);
  const first = [...seeds];
  await rollout({}, context);
  expect(seeds.slice(3)).toEqual(first);
});

test('a group without a single success is returned with its failures; afterGroup may refuse one', async () => {
  const dead = createGroupRollout<string>(() => Promise.reject(new Error('dead')), { groupSize: 2 });
  const group = await dead('a', context);
  expect([group.length, group.exceptions.length]).toEqual([0, 2]);
  const judged = createGroupRollout<string>(async () => new Trajectory({ reward: 1 }), {
    groupSize: 2,
    afterGroup: () => null,
  });
  expect((await judged('a', context)).length).toBe(0);
  expect(() => createGroupRollout(async () => new Trajectory(), { groupSize: 0 })).toThrow(ConfigError);
});
