import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { TestApi } from '../../../test/server/test-api.ts';
import { completion, group, trajectory } from '../../../test/server/training-fixtures.ts';
import { writeStarterModel } from '../../formats/starter-model.ts';
import type { DistillRequest } from '../../wire/distill.ts';

let api: TestApi;
beforeEach(async () => {
  api = await TestApi.open();
});
afterEach(() => api.close());

const path = '/api/models/agent/distill';

/** Two turns of equal reward, which `train` would skip. */
function request(key: string, more: Partial<DistillRequest> = {}): DistillRequest {
  const { completions, step } = api.registry.get('agent').model;
  for (const id of ['x', 'y']) completions.put(completion(id, { policyStep: step() }));
  const groups = [group(trajectory(0, ['x']), trajectory(0, ['y']))];
  return { idempotency_key: key, teacher: { model: 'teacher' }, groups, options: {}, ...more };
}

const registerTeacher = () => api.registry.register({ ...api.registration, name: 'teacher', seed: 9 });

describe('a distill job', () => {
  test('gives each sampled token the gap between teacher and sampler; its key trains once', async () => {
    const student = api.engine;
    await registerTeacher();
    const events = await api.stream('POST', path, request('a'));
    const { step, metrics } = events.at(-1)!.data;
    expect(step).toBe(1);
    expect(events.map(({ data }) => data.stage)).toContain('score');
    const [sent] = student.requests;
    expect(sent?.loss).toEqual({ name: 'importanceSampling' });
    // The counting engine scores every token alike: −1 − seed / 16.
    const teacher = Math.fround(-1 - 9 / 16);
    for (const { actionMask, advantages, samplingLogprobs } of sent!.data) {
      expect(actionMask).toContain(1);
      for (const [t, mask] of actionMask.entries()) {
        expect(advantages[t]).toBe(mask === 1 ? teacher - samplingLogprobs[t]! : 0);
      }
    }
    expect(metrics['distill/kl_reverse']).toBeCloseTo(Math.fround(-1 - 3 / 16) - teacher, 6);
    expect(metrics).toMatchObject({ 'data/step_num_trajectories': 2, 'distill/served_policy_changed': 1 });
    const [row] = api.registry.get('agent').metricFiles.history();
    expect(row).toMatchObject({ split: 'distill', step: 1 });
    expect(await api.stream('POST', path, request('a'))).toEqual([events.at(-1)]);
    expect((await api.call('POST', path, request('a', { options: { epochs: 2 } }))).status).toBe(409);
  });

  test('hands the best tokens of the teacher to the losses on top-k', async () => {
    const student = api.engine;
    await registerTeacher();
    const options = { loss: 'forward_kl_top_k', top_k: 3, coefficient: 2 } as const;
    const { metrics } = (await api.stream('POST', path, request('a', { options }))).at(-1)!.data;
    const [sent] = student.requests;
    expect(sent?.loss).toEqual({ name: 'forwardKlTopK' });
    const { actionMask, teacher } = sent!.data[0]!;
    expect(teacher?.tokenIds).toEqual(actionMask.map((mask) => (mask === 1 ? [0, 1, 2] : [])));
    const mass = [0, 1, 2].reduce((sum, k) => sum + Math.exp(Math.fround(-1 - 9 / 16) - k), 0);
    expect(metrics['distill/coverage']).toBeCloseTo(mass, 6);
    expect(metrics).toHaveProperty('distill/kl_forward');
  });

  test('a system message of the teacher stands before the conversation, for the teacher alone', async () => {
    const prompts: (readonly number[])[] = [];
    const { engine } = api;
    const sample = engine.doSample.bind(engine);
    engine.doSample = (asked) => {
      prompts.push(asked.promptIds);
      return sample(asked);
    };
    const body = request('a', { teacher: { model: 'agent', system_prompt: 'Be brief.' } });
    expect((await api.stream('POST', path, body)).at(-1)?.event).toBe('result');
    const { tokenIds } = engine.requests[0]!.data[0]!;
    const prefix = prompts[0]!.slice(0, prompts[0]!.length - tokenIds.length);
    expect(prompts[0]!.slice(prefix.length)).toEqual(tokenIds);
    const { tokenizer } = api.registry.get('agent').model;
    expect(tokenizer.decode(prefix)).toContain('Be brief.');
    expect(tokenizer.decode(tokenIds)).not.toContain('Be brief.');
  });

  test('refuses a teacher of another vocabulary by the token that differs', async () => {
    const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
    const directory = join(api.root, 'other');
    await writeStarterModel({ seed: 1, directory, corpus: ['weaving weaving weaving'], ...sizes });
    await api.registry.register({ ...api.registration, name: 'teacher', base_model: directory });
    const { status, json } = await api.call('POST', path, request('a'));
    expect(status).toBe(400);
    expect(json.error.message).toMatch(/^distill: teacher teacher and model agent must have one vocabulary, got /);
  });

  test('refuses an unknown teacher and unknown options before anything runs', async () => {
    const wrong = async (body: unknown) => api.call('POST', path, body);
    expect(await wrong(request('a'))).toMatchObject({ status: 404, json: { error: { code: 'model_not_found' } } });
    await registerTeacher();
    const odd = { ...request('a'), options: { lr: 1 } };
    expect((await wrong(odd)).json.error.message).toBe('options.lr: unknown field');
    expect((await wrong(request('a', { options: { top_k: 21 } }))).json.error.message).toMatch(/^options.top_k: /);
    expect(api.engine.calls).not.toContain('forwardBackward');
  });
});
