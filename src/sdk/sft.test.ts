import { expect, expectTypeOf, test } from 'vitest';
import { openRemoteApi } from '../../test/server/remote-api.ts';
import { createLearningRateSchedule } from '../core/learning-rates.ts';
import { type ChatChoice, Trajectory } from '../core/trajectory.ts';
import type { TrainProgress } from '../wire/training.ts';
import { encodeSftExamples, encodeSftOptions, type SftOptions } from './sft.ts';

const lesson = {
  messages: [
    { role: 'user' as const, content: 'left' },
    { role: 'assistant' as const, content: 'right' },
  ],
};
const tool = { type: 'function', function: { name: 'look', parameters: { type: 'object' } } };
const teacherTurn = (message: object): ChatChoice => ({
  index: 0,
  finish_reason: 'stop',
  message: { role: 'assistant', ...message },
});

test('trainSft makes a step of the same counter as training by reward, with progress; its key trains once', async () => {
  const { api, model } = await openRemoteApi();
  await api.train('reward');
  const progress: TrainProgress[] = [];
  const options: SftOptions = { batchSize: 1, epochs: 2, learningRate: 0.5, warmupRatio: 0, schedule: 'constant' };
  const call = { idempotencyKey: 'lesson', onProgress: (one: TrainProgress) => progress.push(one) };
  const first = await model.trainSft([lesson, lesson], options, call);
  expect(first).toMatchObject({
    step: 2,
    metrics: { 'sft/updates': 4, 'sft/conversations': 4, 'sft/learning_rate': 0.5 },
  });
  expect(progress.filter(({ stage }) => stage === 'train').map(({ done }) => done)).toEqual([1, 2, 3, 4]);
  expect(await model.trainSft([lesson, lesson], options, call)).toEqual(first);
  expect((await api.train('again')).step).toBe(3);
  expect(await model.getStep()).toBe(3);
});

test('trajectories count as their conversations, with what clients and servers add to a message left out', () => {
  const call = { id: 'c1', type: 'function', index: 0, function: { name: 'look', arguments: '{}' } };
  const answer = { content: 'there', refusal: null, annotations: [], reasoning: 'hm', provider: 'x' };
  const trajectory = new Trajectory({
    messagesAndChoices: [
      { role: 'user', content: 'where?' },
      teacherTurn({ content: null, tool_calls: [call], refusal: null }),
      { role: 'tool', content: '7', tool_call_id: 'c1' },
      teacherTurn(answer),
    ],
    tools: [tool],
    additionalHistories: [
      { messagesAndChoices: [{ role: 'user', content: 'sub' }, teacherTurn({ content: 'task' })] },
      { messagesAndChoices: [{ role: 'user', content: 'never answered' }] },
    ],
    reward: 1,
  });
  const [main, sub, ...none] = encodeSftExamples([trajectory]);
  expect(none).toEqual([]);
  expect(main).toEqual({
    messages: [
      { role: 'user', content: 'where?' },
      {
        role: 'assistant',
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'look', arguments: '{}' } }],
      },
      { role: 'tool', content: '7', tool_call_id: 'c1' },
      { role: 'assistant', content: 'there', reasoning_content: 'hm' },
    ],
    tools: [tool],
  });
  expect(sub?.messages).toHaveLength(2);
});

test('what cannot be learned is refused by its place before anything is sent', () => {
  const wrong =
    (examples: Parameters<typeof encodeSftExamples>[0]): (() => void) =>
    () =>
      void encodeSftExamples(examples);
  expect(wrong([])).toThrow('trainSft: needs at least one conversation, got none');
  expect(wrong([lesson, { messages: [{ role: 'user', content: 'x', weight: 1 }] }])).toThrow(
    /^trainSft: example 1: messages\[0\].weight: unknown field$/,
  );
  expect(wrong([new Trajectory({ messagesAndChoices: [teacherTurn({ content: null, refusal: 'no' })] })])).toThrow(
    'trainSft: example 0: must hold no refusal, got "no"',
  );
  expect(wrong([new Trajectory()])).toThrow('must hold an assistant message or choice, got none');
  expect(() => encodeSftOptions({ learning_rate: 1 } as SftOptions)).toThrow(/trainSft options.*learning_rate/);
  expect(() => encodeSftOptions({ batchSize: 0 })).toThrow(/^trainSft options.batchSize: /);
  expectTypeOf<SftOptions>().not.toHaveProperty('lr');
});

test('a learning-rate schedule has one rate a step: it never begins at 0 and never learns nothing', () => {
  const rates = createLearningRateSchedule({ totalSteps: 6, peak: 1, decay: 'linear', warmupSteps: 2, minimum: 0.2 });
  expect(rates.map((rate) => Number(rate.toFixed(6)))).toEqual([0.333333, 0.666667, 1, 0.8, 0.6, 0.4]);
  expect(createLearningRateSchedule({ totalSteps: 2, peak: 3, decay: 'constant' })).toEqual([3, 3]);
  expect(() => createLearningRateSchedule({ totalSteps: 0, peak: 1 })).toThrow(
    'totalSteps must be an integer ≥ 1, got 0',
  );
});
