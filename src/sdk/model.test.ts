import { expect, test } from 'vitest';
import { ConfigError, DataError } from '../core/errors.ts';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import type { Backend, InferenceEndpoint } from './backend.ts';
import { encodeLogGroups, encodeTrainGroups, type Loggable } from './encode.ts';
import { RemoteBackend } from './http-backend.ts';
import { Model, TrainableModel, type TrainableModelInit } from './model.ts';
import { encodeTrainOptions, type TrainOptions } from './options.ts';

const init: TrainableModelInit = { name: 'agent-001', project: 'demo', baseModel: './tiny' };
const endpoint: InferenceEndpoint = { baseURL: 'http://127.0.0.1:1/v1', apiKey: 'art-local', modelName: 'agent-001' };

function scriptedBackend(register: () => Promise<InferenceEndpoint>): Backend & { readonly calls: () => number } {
  let calls = 0;
  const backend: Backend = Object.assign(new RemoteBackend({ baseURL: 'http://127.0.0.1:1' }), {
    register: () => {
      calls++;
      return register();
    },
  });
  return Object.assign(backend, { calls: () => calls });
}

test('a model before registration says what to do', async () => {
  const model = new TrainableModel(init);
  const hint = 'model agent-001: must be registered first; await model.register(backend)';
  expect(() => model.openaiClient()).toThrow(new ConfigError(hint));
  expect(() => model.getInferenceName()).toThrow(hint);
  await expect(model.getStep()).rejects.toThrow(hint);
});

test('registering twice with one backend is the same as once; a failure can be tried again', async () => {
  const backend = scriptedBackend(async () => endpoint);
  const model = new TrainableModel(init);
  await Promise.all([model.register(backend), model.register(backend)]);
  await model.register(backend);
  expect(backend.calls()).toBe(1);
  expect(model.openaiClient()).toBe(model.openaiClient());
  expect(model.openaiClient()).toMatchObject({ baseURL: endpoint.baseURL, apiKey: 'art-local' });
  expect([model.getInferenceName(), model.getInferenceName(12)]).toEqual(['agent-001', 'agent-001@12']);

  let isUp = false;
  const flaky = scriptedBackend(async () => {
    if (!isUp) throw new ConfigError('not yet');
    return endpoint;
  });
  const other = new TrainableModel(init);
  await expect(other.register(flaky)).rejects.toThrow('not yet');
  isUp = true;
  await other.register(flaky);
  expect(other.getInferenceName()).toBe('agent-001');
});

test('a plain model speaks to any endpoint and has no steps', () => {
  const model = new Model({
    name: 'gpt',
    project: 'demo',
    inferenceBaseURL: 'https://example.test/v1',
    inferenceApiKey: 'k',
    inferenceModelName: 'gpt-5-mini',
  });
  expect(model.getInferenceName()).toBe('gpt-5-mini');
  expect(model.openaiClient().baseURL).toBe('https://example.test/v1');
  expect(() => model.getInferenceName(1)).toThrow(ConfigError);
});

test('unknown options are refused by name before anything is sent', async () => {
  const model = new TrainableModel(init);
  const backend = new RemoteBackend({ baseURL: 'http://127.0.0.1:9' });
  await expect(backend.train(model, [], { lr: 1e-4 } as TrainOptions)).rejects.toThrow(
    /train options: known options are learningRate, .*seed; got lr$/,
  );
  await expect(backend.train(model, [], { adam: { beta: 1 } } as unknown as TrainOptions)).rejects.toThrow(
    'train options.adam: known options are beta1, beta2, epsilon, weightDecay; got beta',
  );
  expect(() => new TrainableModel({ ...init, base_model: 'x' } as TrainableModelInit)).toThrow(/got base_model$/);
  await expect(backend.register(new TrainableModel({ ...init, name: '../etc' }))).rejects.toThrow(
    /name: must be 1–100/,
  );
});

test('option values are checked under the names the user knows', () => {
  expect(encodeTrainOptions({ learningRate: 1e-3, maxGradNorm: 0, adam: { weightDecay: 0.1 } })).toEqual({
    learning_rate: 1e-3,
    max_grad_norm: 0,
    adam: { weight_decay: 0.1 },
  });
  expect(() => encodeTrainOptions({ gradientSteps: 0 })).toThrow('train options.gradientSteps: must be ≥ 1, got 0');
  expect(() => encodeTrainOptions({ adam: { weightDecay: -1 } })).toThrow(
    'train options.adam.weightDecay: must be ≥ 0, got -1',
  );
});

const choice = { index: 1, finish_reason: 'stop', message: { role: 'assistant', content: '5' } };
const sampled = { ...choice, art: { completion_id: 'chatcmpl-1', policy_step: 0 } };
const user = { role: 'user', content: 'board' } as const;

test('a sampled turn travels by reference', () => {
  const trajectory = new Trajectory({ messagesAndChoices: [user, sampled], reward: 1 });
  const [group] = encodeTrainGroups([new TrajectoryGroup([trajectory], { metadata: { scenario: 3 } })]);
  expect(group?.trajectories[0]?.entries).toEqual([
    { message: user },
    { message: { role: 'assistant', content: '5' }, choice: { completion_id: 'chatcmpl-1', choice_index: 1 } },
  ]);
  expect(group?.metadata).toEqual({ scenario: 3 });
});

test('what cannot be trained is refused with its place', () => {
  const train = (trajectory: Trajectory): unknown => encodeTrainGroups([new TrajectoryGroup([trajectory])]);
  expect(() => train(new Trajectory({ messagesAndChoices: [user, { role: 'assistant', content: '5' }] }))).toThrow(
    /^train: group 0, trajectory 0: needs at least one sampled choice/,
  );
  expect(() => train(new Trajectory({ messagesAndChoices: [user, choice] }))).toThrow(/every choice must be sampled/);
  expect(() => train(new Trajectory({ messagesAndChoices: [sampled], reward: Number.NaN }))).toThrow(
    'train: group 0, trajectory 0: reward must be finite, got NaN',
  );
  expect(() => encodeTrainGroups([[]] as unknown as TrajectoryGroup[])).toThrow(DataError);
});

test('logging takes groups or trajectories, not a mixture', () => {
  const trajectory = new Trajectory({ reward: 0, messagesAndChoices: [user, choice] });
  const group = new TrajectoryGroup([trajectory]);
  expect(encodeLogGroups([])).toEqual([]);
  expect(encodeLogGroups(group)).toEqual(encodeLogGroups([trajectory]));
  expect(encodeLogGroups([group, group])).toHaveLength(2);
  expect(() => encodeLogGroups([group, trajectory] as unknown as Loggable)).toThrow(/got both$/);
});
