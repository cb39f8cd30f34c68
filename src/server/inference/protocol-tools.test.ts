/** Tools and reasoning by the Responses API and by Anthropic's Messages API: what clients get, and that the next turn is token-exact. */
import { describe, expect, test } from 'vitest';
import { createApp } from '../app.ts';
import { createScriptedModel, type ScriptedModel, type ScriptedModelOptions } from '../testing-model.ts';

type Json = Record<string, unknown>;

interface Served {
  readonly model: ScriptedModel;
  /** The answer, put together from its events where it is a stream. */
  readonly post: (path: string, body: Json) => Promise<Json>;
}

async function serve(texts: readonly string[], options: ScriptedModelOptions = {}): Promise<Served> {
  const model = await createScriptedModel(
    (tokenizer) => (_request, call) => ({ tokenIds: tokenizer.encode(texts[call % texts.length] as string) }),
    { maxPositions: 4096, ...options },
  );
  const app = createApp({ models: () => [model], findModel: () => model });
  const post: Served['post'] = async (path, body) => {
    const response = await app.request(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    expect(response.status).toBe(200);
    expect(response.headers.get('x-art-rerendered')).toBeNull();
    if (body.stream !== true) return (await response.json()) as Json;
    const events = (await response.text()).split('\n\n').filter((block) => block !== '');
    return joinEvents(events.map((block) => JSON.parse(block.slice(block.indexOf('data: ') + 6)) as Json));
  };
  return { model, post };
}

/** As the official clients do: Responses by its last event, Anthropic's by block deltas. */
function joinEvents(events: readonly Json[]): Json {
  const last = events.at(-1) as Json;
  if (last.type !== 'message_stop') return last.response as Json;
  const message = events[0]?.message as Json & { content: Json[] };
  for (const event of events) {
    if (event.type === 'content_block_start') message.content.push({ ...(event.content_block as Json), json: '' });
    const block = message.content[event.index as number];
    if (event.type === 'content_block_delta' && block !== undefined) addDelta(block, event.delta as Json);
    if (event.type === 'message_delta') Object.assign(message, event.delta);
  }
  for (const block of message.content) {
    if (block.type === 'tool_use') block.input = JSON.parse(block.json as string);
    delete block.json;
  }
  return message;
}

function addDelta(block: Json, delta: Json): void {
  const field: Record<string, string> = {
    text_delta: 'text',
    thinking_delta: 'thinking',
    signature_delta: 'signature',
  };
  if (delta.type === 'input_json_delta') block.json = `${block.json}${delta.partial_json}`;
  else {
    const name = field[delta.type as string] as string;
    block[name] = `${block[name]}${delta[name]}`;
  }
}

const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const callText = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>';

interface Protocol {
  readonly path: string;
  /** A request whose history is the user's message, the answer and a tool result for each of its calls. */
  readonly ask: (answer: Json | null, results: readonly string[]) => Json;
  /** What an answer says, as [kind, text] of each part. */
  readonly parts: (answer: Json) => readonly (readonly [string, unknown])[];
}

const responses: Protocol = {
  path: '/v1/responses',
  ask: (answer, results) => {
    const output = (answer?.output ?? []) as Json[];
    const calls = output.filter((item) => item.type === 'function_call');
    return {
      model: 'm',
      input: [
        { role: 'user', content: 'hello' },
        ...output,
        ...calls.map((call, index) => ({
          type: 'function_call_output',
          call_id: call.call_id,
          output: results[index],
        })),
      ],
      tools: [{ type: 'function', name: 'weather', parameters }],
      store: false,
    };
  },
  parts: (answer) =>
    (answer.output as Json[]).map((item) => {
      if (item.type === 'function_call') return ['call', `${item.name} ${item.arguments}`];
      return [item.type as string, (item.content as Json[]).map((part) => part.text).join('')];
    }),
};

const messages: Protocol = {
  path: '/v1/messages',
  ask: (answer, results) => {
    const content = (answer?.content ?? []) as Json[];
    const calls = content.filter((block) => block.type === 'tool_use');
    const blocks = calls.map((call, index) => ({ type: 'tool_result', tool_use_id: call.id, content: results[index] }));
    return {
      model: 'm',
      max_tokens: 400,
      messages: [
        { role: 'user', content: 'hello' },
        ...(answer === null ? [] : [{ role: 'assistant', content }]),
        ...(blocks.length === 0 ? [] : [{ role: 'user', content: blocks }]),
      ],
      tools: [{ name: 'weather', input_schema: parameters }],
    };
  },
  parts: (answer) =>
    (answer.content as Json[]).map((block) => {
      if (block.type === 'tool_use') return ['call', `${block.name} ${JSON.stringify(block.input)}`];
      return block.type === 'thinking' ? ['reasoning', block.thinking] : ['message', block.text];
    }),
};

const cases = [responses, messages].flatMap((protocol) =>
  [false, true].map((stream) => [`${protocol.path}${stream ? ', streamed' : ''}`, protocol, stream] as const),
);

describe.each(cases)('%s', (_name, protocol, stream) => {
  const normal = (parts: ReturnType<Protocol['parts']>): string => JSON.stringify(parts).replaceAll(': ', ':');

  test('two calls and their results: the second prompt repeats the first one and all sampled ids', async () => {
    const { model, post } = await serve([
      `up\n${callText}\n${callText.replace('Bern', 'Rome')}<|im_end|>`,
      'left<|im_end|>',
    ]);
    const first = await post(protocol.path, { ...protocol.ask(null, []), stream });
    expect(normal(protocol.parts(first))).toBe(
      normal([
        ['message', protocol.parts(first)[0]?.[1]],
        ['call', 'weather {"city":"Bern"}'],
        ['call', 'weather {"city":"Rome"}'],
      ]),
    );
    expect(protocol.parts(first)[0]?.[1]).toMatch(/^up\n?$/);
    const reason = protocol === messages ? first.stop_reason : first.status;
    expect(reason).toBe(protocol === messages ? 'tool_use' : 'completed');
    const second = await post(protocol.path, { ...protocol.ask(first, ['rain', 'sun']), stream });
    expect(protocol.parts(second)).toEqual([['message', 'left']]);
    const { promptIds = [], tokenIds = [] } = model.completions.get(first.id as string, 0) ?? {};
    const results = ['rain', 'sun'].map((text) => `<tool_response>\n${text}\n</tool_response>`).join('\n');
    const suffix = model.tokenizer.encode(`\n<|im_start|>user\n${results}<|im_end|>\n<|im_start|>assistant\n`);
    expect(model.engine.requests[1]?.promptIds).toEqual([...promptIds, ...tokenIds, ...suffix]);
  });

  test('reasoning comes by itself, and is sampled ids again in the next turn', async () => {
    const chatTemplate =
      '{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';
    const { model, post } = await serve([`<think>\nright or up\n</think>\n\n${callText}<|im_end|>`, 'left<|im_end|>'], {
      chatTemplate,
    });
    const first = await post(protocol.path, { ...protocol.ask(null, []), stream });
    expect(normal(protocol.parts(first))).toBe(
      normal([
        ['reasoning', 'right or up'],
        ['call', 'weather {"city":"Bern"}'],
      ]),
    );
    await post(protocol.path, { ...protocol.ask(first, ['rain']), stream });
    const { promptIds = [], tokenIds = [] } = model.completions.get(first.id as string, 0) ?? {};
    const sampled = [...promptIds, ...tokenIds];
    expect(model.engine.requests[1]?.promptIds.slice(0, sampled.length)).toEqual(sampled);
  });
});

test('a schema for the text reaches the engine by both protocols', async () => {
  const { model, post } = await serve(['{}<|im_end|>']);
  const schema = { type: 'object', properties: {}, additionalProperties: false };
  const format = { type: 'json_schema', name: 'x', schema };
  await post('/v1/responses', { model: 'm', input: 'hello', text: { format } });
  const user = { model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'hello' }] };
  await post('/v1/messages', { ...user, output_config: { format: { type: 'json_schema', schema } } });
  const [first, second] = model.engine.requests.map((request) => request.sampling.constraint);
  expect(first).toMatchObject({ schema });
  expect(second).toEqual(first);
});
test('tool_choice and parallel calls of both protocols constrain what is sampled alike', async () => {
  const { model, post } = await serve([`${callText}<|im_end|>`]);
  const named = { type: 'function', name: 'weather' };
  await post('/v1/responses', { ...responses.ask(null, []), tool_choice: named, parallel_tool_calls: false });
  const tool = { type: 'tool', name: 'weather', disable_parallel_tool_use: true };
  await post('/v1/messages', { ...messages.ask(null, []), tool_choice: tool });
  await post('/v1/responses', { ...responses.ask(null, []), tool_choice: 'required' });
  await post('/v1/messages', { ...messages.ask(null, []), tool_choice: { type: 'any' } });
  const constraints = model.engine.requests.map((request) => request.sampling.constraint);
  expect(constraints[0]).toBeDefined();
  expect(constraints[1]).toEqual(constraints[0]);
  expect(constraints[2]).toBeDefined();
  expect(constraints[3]).toEqual(constraints[2]);
  expect(constraints[2]).not.toEqual(constraints[0]);
});

test('calls of all protocols belong to their rollout; a prompt that was only scored is no turn', async () => {
  const { model, post } = await serve(['left<|im_end|>']);
  const bodies: Readonly<Record<string, Json>> = {
    responses: { input: 'hello' },
    messages: { max_tokens: 9, messages: [{ role: 'user', content: 'hello' }] },
    completions: { prompt: 'hello' },
  };
  const ids: unknown[] = [];
  for (const [route, body] of Object.entries(bodies)) {
    ids.push((await post(`/rollouts/r1/v1/${route}`, { model: 'm', ...body })).id);
  }
  await post('/rollouts/r1/v1/completions', { model: 'm', prompt: 'hello', max_tokens: 0, echo: true });
  expect(model.completions.rollouts.get('r1')?.calls.map(({ completionId }) => completionId)).toEqual(ids);
});
