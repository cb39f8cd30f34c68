/** Bodies that each route takes, to be sent as they are or damaged. A route without a row gets an empty object. */
import type { Rng } from '../../src/core/rng.ts';
import type { Json } from './mutate.ts';
import type { Route } from './plan.ts';
import { modelName } from './target.ts';

interface BodyOptions {
  readonly marker: string;
  readonly index: number;
  readonly baseModel: string;
  readonly rng: Rng;
}

type Fields = Record<string, Json>;

const parameters: Json = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };

const rows: readonly (readonly [ends: RegExp, body: (options: BodyOptions) => Json])[] = [
  [/\/chat\/completions$/, chat],
  [/\/completions$/, ({ marker, rng }) => ({ model: modelName, prompt: marker, max_tokens: 16, ...sampling(rng) })],
  [/\/responses$/, responses],
  [/\/messages$/, messages],
  [/\/messages\/count_tokens$/, ({ marker }) => ({ model: modelName, messages: [{ role: 'user', content: marker }] })],
  [/^\/api\/models$/, ({ baseModel }) => ({ ...registration, base_model: baseModel })],
  [/\/train$/, train],
  [/\/sft$/, sft],
  [/\/log$/, ({ rng }) => ({ split: 'val', step: 0, groups: [group(rng)], metrics: { 'fuzz/x': 1 } })],
  [/\/reward$/, ({ rng }) => ({ reward: rng.uniform(), metrics: { turns: 1 }, metadata: { kind: 'fuzz' } })],
];

/** Null where the method has no body. */
export function validBody(route: Route, options: BodyOptions): Json | null {
  if (route.method === 'GET') return null;
  return rows.find(([ends]) => ends.test(route.path))?.[1](options) ?? {};
}

const registration: Fields = { name: modelName, project: modelName, lora: { rank: 8, alpha: 16 }, seed: 0 };

function sampling(rng: Rng): Fields {
  const fields: Fields = { seed: rng.uint32(), temperature: rng.integer(3) / 2, stream: rng.integer(2) === 0 };
  if (rng.integer(4) === 0) fields.top_p = 0.9;
  return fields;
}

function chat({ marker, rng }: BodyOptions): Json {
  const body: Fields = {
    model: modelName,
    messages: [
      { role: 'system', content: 'Say it again.' },
      { role: 'user', content: rng.integer(2) === 0 ? marker : [{ type: 'text', text: marker }] },
    ],
    max_tokens: 16,
    ...sampling(rng),
  };
  if (rng.integer(4) === 0) body.n = 2;
  if (rng.integer(4) === 0) Object.assign(body, { logprobs: true, top_logprobs: 2 });
  if (rng.integer(4) === 0) body.return_token_ids = true;
  if (rng.integer(6) === 0) body.tools = [{ type: 'function', function: { name: 'weather', parameters } }];
  return body;
}

function responses({ marker, rng }: BodyOptions): Json {
  const input: Json =
    rng.integer(2) === 0 ? marker : [{ role: 'user', content: [{ type: 'input_text', text: marker }] }];
  const body: Fields = {
    model: modelName,
    input,
    max_output_tokens: 16,
    store: rng.integer(2) === 0,
    ...sampling(rng),
  };
  if (rng.integer(6) === 0) body.tools = [{ type: 'function', name: 'weather', parameters, strict: false }];
  return body;
}

function messages({ marker, rng }: BodyOptions): Json {
  const { seed: _, temperature, ...rest } = sampling(rng);
  const content: Json = rng.integer(2) === 0 ? marker : [{ type: 'text', text: marker }];
  return {
    model: modelName,
    max_tokens: 16,
    system: 'Say it again.',
    messages: [{ role: 'user', content }],
    temperature: Math.min(1, Number(temperature)),
    ...rest,
  };
}

function group(rng: Rng): Json {
  const trajectory = (reward: number): Json => ({
    entries: [{ message: { role: 'user', content: 'hello' } }, { message: { role: 'assistant', content: 'hi' } }],
    reward,
    metrics: { turns: 1 },
    metadata: { kind: 'fuzz' },
    logs: ['log'],
  });
  return {
    trajectories: [trajectory(rng.integer(2)), trajectory(1)],
    exceptions: [],
    metrics: {},
    metadata: {},
    logs: [],
  };
}

function train({ index, rng }: BodyOptions): Json {
  return { idempotency_key: `fuzz-${index}`, groups: [group(rng)], options: { learning_rate: 1e-4, loss: 'ppo' } };
}

function sft({ index }: BodyOptions): Json {
  const conversation: Json = {
    messages: [
      { role: 'user', content: 'hello' },
      { role: 'assistant', content: 'hi' },
    ],
  };
  return { idempotency_key: `fuzz-${index}`, conversations: [conversation], options: { learning_rate: 1e-4 } };
}
