/**
 * Does it learn? A teacher knows the answer to each of two questions, a student two answers to each, one of them the teacher's. With each loss
 * the student moves towards the teacher on what it samples itself, through the public API and the real engine.
 * Everything is seeded and bit-exact, so on one machine the test cannot fail by chance.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readModelTensors, toSafetensors, writeSafetensors } from '../../src/formats/safetensors.ts';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import {
  type ChatChoice,
  type DistillOptions,
  LocalBackend,
  TrainableModel,
  Trajectory,
  TrajectoryGroup,
} from '../../src/index.ts';

const lessons = [
  ['left', 'right'],
  ['up', 'down'],
] as const;
const wrong = [
  ['left', 'up'],
  ['up', 'left'],
] as const;
const STEPS = 16;
const ROLLOUTS = 8;

let root: string;
let backend: LocalBackend;
let teacher: TrainableModel;

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-distillation-'));
  const directory = join(root, 'base');
  const sizes = { width: 32, layers: 2, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 64, maxPositions: 64 };
  await writeStarterModel({ seed: 1, directory, corpus: ['left right up down', 'left right up down'], ...sizes });
  // An adapter cannot move the tied output matrix, whose rows are so short in an untrained model that no token can stand out.
  const tensors = await readModelTensors(directory);
  for (const [name, { data }] of tensors) if (name.includes('embed_tokens')) data.set(data.map((value) => value * 8));
  await writeSafetensors(join(directory, 'model.safetensors'), toSafetensors(tensors), { format: 'pt' });
  const engine = { trainThreads: 1, sampleThreads: 1, cacheTokens: 4096, maxRunningSequences: 32 };
  backend = new LocalBackend({ path: join(root, 'runs'), engine });
  teacher = await register('teacher');
  await teach(teacher, lessons);
}, 60_000);
afterAll(async () => {
  await backend.close();
  await rm(root, { recursive: true });
});

async function register(name: string): Promise<TrainableModel> {
  const model = new TrainableModel({ name, project: 'p', baseModel: join(root, 'base'), lora: { rank: 8, alpha: 16 } });
  await model.register(backend);
  return model;
}

async function teach(model: TrainableModel, pairs: readonly (readonly [string, string])[]): Promise<void> {
  const examples = pairs.map(([content, reply]) => ({
    messages: [
      { role: 'user' as const, content },
      { role: 'assistant' as const, content: reply },
    ],
  }));
  await model.trainSft(examples, { epochs: 40, batchSize: pairs.length, learningRate: 0.02, seed: 1 });
}

/** What the student answers, sampled with seeds of the step. */
async function rollOut(student: TrainableModel, step: number): Promise<TrajectoryGroup[]> {
  const client = student.openaiClient();
  return Promise.all(
    lessons.map(async ([content]) => {
      const message = { role: 'user', content } as const;
      const body = { model: student.getInferenceName(), messages: [message], max_tokens: 4, seed: step, n: ROLLOUTS };
      const { choices } = await client.chat.completions.create(body);
      return new TrajectoryGroup(
        choices.map((choice) => new Trajectory({ messagesAndChoices: [message, choice as ChatChoice] })),
      );
    }),
  );
}

describe.each(['reverseKl', 'forwardKlTopK', 'reverseKlTopK'] as const)('%s', (loss) => {
  test(`at most a quarter of a student's distance to the teacher is left after ${STEPS} steps`, async () => {
    const student = await register(`student-${loss}`);
    await teach(student, [...lessons, ...wrong]);
    const distance = loss === 'forwardKlTopK' ? 'distill/kl_forward' : 'distill/kl_reverse';
    const options: DistillOptions = { teacher, loss, topK: 8, learningRate: 0.005 };
    const rows: Readonly<Record<string, number>>[] = [];
    for (let step = 0; step < STEPS; step++) {
      const { metrics } = await student.distill(await rollOut(student, step), options);
      rows.push(metrics);
    }
    const meanOfLast = (name: string): number => rows.slice(-4).reduce((sum, row) => sum + row[name]! / 4, 0);
    expect(rows[0]![distance]).toBeGreaterThan(1);
    expect(meanOfLast(distance)).toBeLessThan(rows[0]![distance]! / 4);
    expect(rows[0]!['distill/agreement']).toBeLessThan(0.5);
    expect(meanOfLast('distill/agreement')).toBeGreaterThan(0.75);
    expect(rows.at(-1)).toMatchObject({ 'distill/served_policy_changed': 1, 'data/step_num_trajectories': 16 });
    expect(await student.getStep()).toBe(STEPS + 1);
  }, 60_000);
});
