/** Models that cannot be served or trained: each is a 4xx with the file or field, leaves no run, and the server goes on. */
import { cp, mkdtemp, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { type ArtServer, createArtServer } from '../../src/server/index.ts';
import { errorBody } from '../../src/wire/errors.ts';
import { completion, group, trainRequest, trajectory } from '../server/training-fixtures.ts';
import { copyModel, editJson, editTensors, shardModel, truncateFile } from './damaged-model.ts';

let root = '';
let good = '';
let server: ArtServer;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-bad-'));
  good = join(root, 'good');
  const sizes = { width: 32, layers: 2, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 48, maxPositions: 128 };
  await writeStarterModel({ seed: 1, directory: good, corpus: ['yes no'], vocabSize: 280, ...sizes });
  server = await createArtServer({
    root: join(root, '.art'),
    engineTuning: { trainThreads: 1, cacheTokens: 1024, microbatchTokens: 256 },
    onWarning: () => {},
  });
});
afterAll(async () => {
  await server.close();
  await rm(root, { recursive: true });
});

interface Answer {
  readonly status: number;
  readonly body: unknown;
}

const headers = { 'content-type': 'application/json' };

async function post(path: string, body: unknown): Promise<Answer> {
  const response = await fetch(server.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

const register = (name: string, baseModel: string, more: object = {}): Promise<Answer> =>
  post('/api/models', { name, project: 'bad', base_model: baseModel, lora: { rank: 2, alpha: 4 }, seed: 0, ...more });
const chat = (model: string, content: string, more: object = {}): Promise<Answer> =>
  post('/v1/chat/completions', { model, messages: [{ role: 'user', content }], max_tokens: 2, ...more });
const errorOf = ({ body }: Answer): { message: string; code: string | null; param: string | null } =>
  errorBody.parse(body).error;

const embedding = 'model.embed_tokens.weight';
const layer = 'model.layers.1.self_attn.q_proj.weight';
const shard = 'model-00002-of-00002.safetensors';

interface Case {
  readonly damage: (folder: string) => Promise<void>;
  /** What the message must say. */
  readonly says: readonly string[];
}

const cases: Readonly<Record<string, Case>> = {
  'weights that are cut off': {
    damage: (folder) => truncateFile(join(folder, 'model.safetensors'), 100),
    says: ['model.safetensors', 'bytes'],
  },
  'a header that is cut off': {
    damage: (folder) => truncate(join(folder, 'model.safetensors'), 40),
    says: ['model.safetensors'],
  },
  'a shard that is cut off': {
    damage: async (folder) => {
      await shardModel(folder);
      await truncateFile(join(folder, shard), 10);
    },
    says: [shard],
  },
  'a shard that is missing': {
    damage: async (folder) => {
      await shardModel(folder);
      await rm(join(folder, shard));
    },
    says: [shard],
  },
  'a tensor of the wrong shape': {
    damage: (folder) =>
      editTensors(folder, (tensors) => {
        tensors.set(layer, { shape: [16, 32], data: new Float32Array(16 * 32) });
      }),
    says: [layer, '[32, 32]', '[16, 32]'],
  },
  'a tensor that is missing': {
    damage: (folder) => editTensors(folder, (tensors) => void tensors.delete(layer)),
    says: [layer],
  },
  'a weight that is not a number': {
    damage: (folder) =>
      editTensors(folder, (tensors) => {
        const tensor = tensors.get(layer);
        if (tensor !== undefined) tensor.data[7] = Number.NaN;
      }),
    says: [layer, 'NaN'],
  },
  'a configuration that is missing': {
    damage: (folder) => rm(join(folder, 'config.json')),
    says: ['config.json', 'missing'],
  },
  'a configuration that is not JSON': {
    damage: (folder) => writeFile(join(folder, 'config.json'), '{'),
    says: ['config.json', 'JSON'],
  },
  'an architecture that is not implemented': {
    damage: (folder) =>
      editJson(join(folder, 'config.json'), (config) => {
        config.model_type = 'mamba';
      }),
    says: ['config.json', 'model_type', 'mamba', 'qwen3'],
  },
  'a tokenizer that is missing': {
    damage: (folder) => rm(join(folder, 'tokenizer.json')),
    says: ['tokenizer.json', 'missing'],
  },
  'a tokenizer with tokens that the embedding lacks': {
    damage: async (folder) => {
      await editJson(join(folder, 'config.json'), (config) => {
        Object.assign(config, { vocab_size: 100, eos_token_id: null, bos_token_id: null, pad_token_id: null });
      });
      await rm(join(folder, 'generation_config.json'), { force: true });
      await editTensors(folder, (tensors) => {
        const data = tensors.get(embedding)?.data.slice(0, 100 * 32) ?? new Float32Array();
        tensors.set(embedding, { shape: [100, 32], data });
      });
    },
    says: ['100 rows (vocab_size)', 'tokens beyond them'],
  },
  'a chat template that does not compile': {
    damage: (folder) => writeFile(join(folder, 'chat_template.jinja'), '{% if %}'),
    says: ['chat template', 'compile'],
  },
  'no weights at all': {
    damage: (folder) => rm(join(folder, 'model.safetensors')),
    says: ['model.safetensors'],
  },
};

describe('a base model is refused that has', () => {
  test.each(Object.entries(cases))('%s', async (name, { damage, says }) => {
    const folder = await copyModel(good, join(root, name.replaceAll(' ', '-')), damage);
    const answer = await register('agent', folder);
    const { message, code } = errorOf(answer);
    expect(message).toContain(folder);
    for (const text of says) expect(message).toContain(text);
    expect(answer.status).toBe(400);
    expect(code).not.toBe('internal_error');
    expect(await readdir(join(root, '.art/bad/models'))).toEqual([]);
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
  });

  test('none of this, and is served under the name of those that failed', async () => {
    expect((await register('agent', good)).status).toBe(200);
    expect((await chat('agent', 'yes')).status).toBe(200);
  });
});

describe('a model is served that has', () => {
  test('more rows in its embedding than its tokenizer has tokens; they are never sampled', async () => {
    const folder = await copyModel(good, join(root, 'wide'), async (copy) => {
      let rows = 0;
      await editTensors(copy, (tensors) => {
        const { shape, data } = tensors.get(embedding) as { shape: number[]; data: Float32Array };
        rows = shape[0]! + 40;
        const wider = new Float32Array(rows * 32);
        wider.set(data);
        tensors.set(embedding, { shape: [rows, 32], data: wider });
      });
      await editJson(join(copy, 'config.json'), (config) => {
        config.vocab_size = rows;
      });
    });
    expect((await register('wide', folder)).status).toBe(200);
    expect((await chat('wide', 'yes')).status).toBe(200);
  });

  test('no chat template: chat is refused with what to do, and works with a given template', async () => {
    const folder = await copyModel(good, join(root, 'bare'), (copy) =>
      editJson(join(copy, 'tokenizer_config.json'), (config) => void delete config.chat_template),
    );
    expect((await register('bare', folder)).status).toBe(200);
    const refused = await chat('bare', 'yes');
    expect(refused.status).toBe(400);
    expect(errorOf(refused)).toMatchObject({ code: 'chat_template_missing', param: 'messages' });
    expect(errorOf(refused).message).toContain(`${folder} has none`);
    expect(errorOf(refused).message).toContain('chat_template.jinja');
    // Turns by their ids, as the server keeps them, need no template.
    const { completions } = server.registry.get('bare').model;
    for (const index of [0, 1]) completions.put(completion(`c-${index}`, { tokenIds: [7 + index, 8] }));
    const groups = group(trajectory(1, ['c-0']), trajectory(0, ['c-1']));
    const trained = await fetch(`${server.url}/api/models/bare/train`, {
      method: 'POST',
      headers,
      body: JSON.stringify(trainRequest('key', groups)),
    });
    expect(await trained.text()).toContain('event: result');
    const chatTemplate = '{% for m in messages %}{{ m.content }}{% endfor %}';
    expect((await register('given', folder, { chat_template: chatTemplate })).status).toBe(200);
    expect((await chat('given', 'yes')).status).toBe(200);
  });
});

describe('a run of another base model is refused', () => {
  const runs = (): string => join(root, '.art/bad/models');

  test('by its registration, and its files stay', async () => {
    await cp(join(runs(), 'agent'), join(runs(), 'copy'), { recursive: true });
    await rm(join(runs(), 'copy/lock'));
    await editJson(join(runs(), 'copy/model.json'), (file) => {
      file.name = 'copy';
    });
    const answer = await register('copy', join(root, 'wide'));
    expect(answer.status).toBe(400);
    expect(errorOf(answer).message).toMatch(/^model copy: base_model must stay what it was registered with, .*SHA-256/);
    expect((await readdir(join(runs(), 'copy'))).sort()).toEqual(['checkpoints', 'completions', 'model.json']);
  });

  test('by its checkpoint, where nothing says what it was registered with', async () => {
    await rm(join(runs(), 'copy/model.json'));
    const answer = await register('copy', join(root, 'wide'));
    expect(answer.status).toBe(500);
    expect(errorOf(answer)).toMatchObject({ code: 'checkpoint_error' });
    const checkpoint = join(runs(), 'copy/checkpoints/0000');
    expect(errorOf(answer).message).toContain(`${checkpoint}: must be of the base model with SHA-256`);
    expect(await readdir(checkpoint)).toContain('adapter_model.safetensors');
    expect((await register('copy', good)).status).toBe(200);
  });
});

test('a prompt over the context is refused with both numbers', async () => {
  const answer = await chat('agent', 'x'.repeat(500));
  expect(answer.status).toBe(400);
  const { code, message, param } = errorOf(answer);
  expect({ code, param }).toEqual({ code: 'context_length_exceeded', param: 'messages' });
  expect(message).toMatch(/must fit in the context of 128 tokens, got \d{3} prompt tokens/);
  expect((await chat('agent', 'yes')).status).toBe(200);
});
