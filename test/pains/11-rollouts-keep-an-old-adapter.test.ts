/** ART #661: rollouts went on with the first adapter, and nothing told. Here each turn says its policy step, and an older one is refused. */
import { expect, test } from 'vitest';
import { captureRollout, captureTrajectory, gatherTrajectoryGroups, trajectoryGroup } from '../../src/index.ts';
import { createScriptedEngine } from '../../src/testing/index.ts';
import { startRepeatingServer } from '../repeating-agent.ts';
import { startScriptedBackend } from '../scripted-backend.ts';

test('what a step trained is what answers next: every turn of a rollout says which policy sampled it', async () => {
  await using server = await startRepeatingServer();
  const { model, backend } = server;
  for (const expected of [0, 1, 2]) {
    let reward = 0;
    const rollout = captureRollout(model, async ({ trajectory }) => {
      await server.talk('step', 2);
      trajectory.reward = reward++;
    });
    const groups = await gatherTrajectoryGroups([trajectoryGroup([rollout, rollout])]);
    const choices = groups.flatMap(({ trajectories }) => trajectories.flatMap((each) => each.allChoices()));
    expect(choices.map(({ art }) => art?.policy_step)).toEqual(Array(4).fill(expected));
    expect((await backend.train(model, groups)).step).toBe(expected + 1);
  }
});

test('an engine that answers by an older policy than the published one is found out at once', async () => {
  const engine = createScriptedEngine({ policySteps: [0], reply: () => ({ tokenIds: [1] }) });
  let step = 0;
  const stale = {
    ...engine,
    async *doSample(request: Parameters<typeof engine.doSample>[0]) {
      for await (const event of engine.doSample({ ...request, policyStep: null })) {
        yield event.type === 'finish' ? { ...event, policyStep: step } : event;
      }
    },
  };
  await using server = await startScriptedBackend(() => '', { createEngine: async () => stale });
  const ask = () =>
    server.model
      .openaiClient()
      .chat.completions.create(
        { model: 'agent', messages: [{ role: 'user', content: 'Hi' }], max_tokens: 1 },
        { maxRetries: 0 },
      );
  await captureTrajectory(ask, { model: server.model });
  step = -1;
  await expect(ask()).rejects.toThrow(/must sample agent from its newest step, 0.*got step -1/);
});
