/** Symptom: a local judge answers 7, 10, 15, words or broken JSON, and those become rewards. Here they are asked again, counted, and never taken. */
import { expect, test } from 'vitest';
import { createJudge, JudgeHealth, ruler } from '../../src/index.ts';
import { goodAnswer, startScriptedJudge } from '../rewards/scripted-judge.ts';

const lists = [0.1, 0.9, 0.5].map((score) => [{ role: 'user' as const, content: `say ${score}` }]);

test('scores off the scale, words and broken JSON end as scores from 0 to 1', async () => {
  const answers = [
    '{"trajectory_1": 7, "trajectory_2": 10, "trajectory_3": 15}',
    '{"trajectory_1": {"score": "good',
    '{"trajectory_1": "good"}',
  ];
  const server = await startScriptedJudge((call) => ({
    text: answers[call.index] ?? goodAnswer(call, (text) => Number(/say (0\.\d)/.exec(text)?.[1])),
  }));
  const health = new JudgeHealth();
  const judgeModel = createJudge({ model: 'local', baseURL: server.baseURL });
  const scores = await ruler(lists, { judgeModel, cache: false, health });
  expect(scores.map(({ score }) => score)).toEqual([0.1, 0.9, 0.5]);
  const first = server.calls[0]?.body;
  expect(first).toMatchObject({ temperature: 0, response_format: { type: 'json_schema' } });
  expect(health.report()).toMatchObject({ reasks: 3, problems: { out_of_range: 1, invalid_json: 1, not_a_number: 1 } });
  expect(health.metrics()).toMatchObject({ 'judge/reasks': 3, 'judge/problem/out_of_range': 1 });
});
