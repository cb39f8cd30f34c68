/** Symptom: RULER refuses several histories, and a judge believes an agent's claims as it cannot see the environment. Here it is shown both. */
import { expect, test } from 'vitest';
import { createJudge, rulerScoreGroup, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { goodAnswer, startScriptedJudge } from '../rewards/scripted-judge.ts';

test('histories of sub-agents and the state of the environment decide', async () => {
  // Both claim the same; only one booked.
  const server = await startScriptedJudge((call) => ({
    text: goodAnswer(call, (text) =>
      text.includes('"environment_state":{"bookings":1}') && text.includes('looked up trains') ? 1 : 0,
    ),
  }));
  const group = new TrajectoryGroup(
    [0, 1].map(
      (bookings) =>
        new Trajectory({
          messagesAndChoices: [
            { role: 'user', content: 'Book a seat.' },
            { role: 'assistant', content: 'Booked!' },
          ],
          additionalHistories: [{ messagesAndChoices: [{ role: 'assistant', content: 'looked up trains' }] }],
          metadata: { bookings },
        }),
    ),
  );
  const scored = await rulerScoreGroup(group, createJudge({ model: 'judge', baseURL: server.baseURL }), {
    groundTruth: 'One seat is booked.',
    environmentState: ({ metadata }) => ({ bookings: metadata.bookings }),
    cache: false,
  });
  expect(scored.trajectories.map(({ reward }) => reward)).toEqual([0, 1]);
  expect(server.calls[0]?.user).toContain('One seat is booked.');
});
