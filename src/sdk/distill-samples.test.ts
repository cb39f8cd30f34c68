import { Hono } from 'hono';
import { expect, onTestFinished, test } from 'vitest';
import { openRemoteApi } from '../../test/server/remote-api.ts';
import { startServer } from '../server/listen.ts';
import { type DistillSamplesOptions, distillFromSamples } from './distill-samples.ts';
import { Model } from './model.ts';

/** An endpoint that is not ours: it answers as scripted, by the question; a number is a status. */
async function openTeacher(answers: Readonly<Record<string, readonly (string | number)[]>>): Promise<Model> {
  const asked: Record<string, number> = {};
  const app = new Hono().post('/v1/chat/completions', async (c) => {
    const { messages } = await c.req.json<{ messages: { content: string }[] }>();
    const question = messages.at(-1)!.content;
    asked[question] = (asked[question] ?? 0) + 1;
    const answer = answers[question]![(asked[question] - 1) % answers[question]!.length]!;
    if (typeof answer === 'number') return c.json({ error: { message: 'scripted' } }, answer as 500);
    const finish_reason = answer.endsWith('…') ? 'length' : 'stop';
    const message = { role: 'assistant', content: answer, refusal: null };
    return c.json({
      id: 'x',
      object: 'chat.completion',
      created: 0,
      model: 'm',
      choices: [{ index: 0, finish_reason, message }],
    });
  });
  const server = await startServer(app);
  onTestFinished(() => server.close());
  return new Model({ name: 'teacher', project: 'p', inferenceBaseURL: `${server.url}/v1`, inferenceApiKey: 'k' });
}

const prompt = (content: string) => ({ messages: [{ role: 'user' as const, content }] });
const length = (trajectory: { messages(): readonly { content?: unknown }[] }): number =>
  String(trajectory.messages().at(-1)?.content).length;

test('the student learns the answers that are good enough; failures, rejected and cut ones are counted', async () => {
  const teacher = await openTeacher({ a: ['yes'], b: ['no', 'maybe'], c: ['cut off…'], d: [500], e: [503, 'fine'] });
  const { api, model } = await openRemoteApi();
  const options: DistillSamplesOptions = {
    teacher,
    prompts: ['a', 'b', 'c', 'd', 'e'].map(prompt),
    samplesPerPrompt: 2,
    reward: length,
    minReward: 3,
    bestOnly: true,
    maxExceptions: 2,
    maxAttempts: 2,
    maxConcurrency: 1,
    sft: { batchSize: 1 },
  };
  const result = await distillFromSamples(model, options);
  // a: one of two equals; b: "maybe", not "no"; c: cut; d: never answers; e: after a second attempt.
  expect(result).toMatchObject({ learned: 3, truncated: 2, failed: 2, train: { step: 1 } });
  expect(result.rejected).toBe(3);
  expect(result.groups.map(({ trajectories }) => trajectories.length)).toEqual([2, 2, 2, 2]);
  const { tokenizer } = api.registry.get('agent').model;
  const texts = api.engine.requests.flatMap(({ data }) => data.map(({ tokenIds }) => tokenizer.decode(tokenIds)));
  for (const answer of ['yes', 'maybe', 'fine']) expect(texts.filter((text) => text.includes(answer))).toHaveLength(1);
});

test('too many failures stop it, and so does a teacher without one good answer', async () => {
  const teacher = await openTeacher({ a: ['yes'], b: [500] });
  const { api, model } = await openRemoteApi();
  const common = { teacher, maxAttempts: 1 };
  await expect(distillFromSamples(model, { ...common, prompts: [prompt('b')] })).rejects.toThrow(/500/);
  const strict = { ...common, prompts: [prompt('a')], reward: () => 0, minReward: 1 };
  await expect(distillFromSamples(model, strict)).rejects.toThrow('needs at least one answer to learn, got 1');
  expect(api.engine.calls).not.toContain('forwardBackward');
  const unknown = { ...common, prompts: [], epochs: 2 } as DistillSamplesOptions;
  await expect(distillFromSamples(model, unknown)).rejects.toThrow(/epochs/);
});
