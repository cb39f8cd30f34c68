/** Symptom: 7 scores for 8 trajectories ended a whole run. Here the missing one is asked for, and a judge that never gives it costs one group. */
import { expect, test } from 'vitest';
import {
  createJudge,
  gatherTrajectoryGroups,
  JudgeHealth,
  rulerScoreGroup,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';
import { goodAnswer, startScriptedJudge } from '../rewards/scripted-judge.ts';

const group = (name: string): TrajectoryGroup =>
  new TrajectoryGroup(
    Array.from(
      { length: 8 },
      (_, index) => new Trajectory({ messagesAndChoices: [{ role: 'user', content: `${name} 0.${index}` }] }),
    ),
  );
const scoreOf = (text: string): number => Number(/ (0\.\d)"/.exec(text)?.[1]);

test('one score too few is asked for by itself; a group without its scores is dropped alone', async () => {
  const server = await startScriptedJudge((call) => {
    const isHopeless = call.user.includes('hopeless');
    const asked = isHopeless || call.asked.length === 8 ? call.asked.slice(0, -1) : call.asked;
    return { text: goodAnswer({ ...call, asked }, scoreOf) };
  });
  const judge = createJudge({ model: 'judge', baseURL: server.baseURL });
  const health = new JudgeHealth();
  const groups = await gatherTrajectoryGroups([group('first'), group('hopeless'), group('last')], {
    afterEach: (one) => rulerScoreGroup(one, judge, { cache: false, health, swallowExceptions: true }),
  });
  const rewards = Array.from({ length: 8 }, (_, index) => index / 10);
  expect(groups.map((one) => one.trajectories.map(({ reward }) => reward))).toEqual([rewards, rewards]);
  const reasked = server.calls.filter(({ user, asked }) => !user.includes('hopeless') && asked.length < 8);
  expect(reasked.map(({ asked }) => asked)).toEqual([['trajectory_8'], ['trajectory_8']]);
  expect(health.report()).toMatchObject({ groups: 3, failedGroups: 1 });
});
