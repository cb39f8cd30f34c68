/** An agent with one tool, from OpenAI's client to the training sequence: what is trained is what was sampled, id by id. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Engine } from '../../src/engines/engine.ts';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { loadTokenizer, type Tokenizer } from '../../src/formats/tokenizer.ts';
import { type ChatChoice, RemoteBackend, TrainableModel, Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { type ArtServer, createArtServer } from '../../src/server/index.ts';
import { createScriptedEngine, type ScriptedEngine } from '../../src/testing/index.ts';
import { createCountingEngine } from './counting-engine.ts';

const counting = createCountingEngine(0, 4096);
let root = '';
let server: ArtServer;
let tokenizer: Tokenizer;
let scripted: ScriptedEngine;

/** Turn by turn, two rollouts: ids that the tokenizer itself would not write, so that encoding again would show. */
const replies = [
  '<tool_call>\n{"name":"weather","arguments":{ "city":"Bern" }}\n</tool_call>',
  'Take an umbrella.',
  'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
  'No umbrella.',
];

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-tool-agent-'));
  const directory = join(root, 'base');
  const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16, maxPositions: 4096 };
  await writeStarterModel({ seed: 1, directory, corpus: replies, ...sizes });
  tokenizer = await loadTokenizer(directory);
  const spelled = (text: string): number[] => [...text].flatMap((character) => tokenizer.encode(character));
  scripted = createScriptedEngine({
    reply: (_request, call) => {
      const tokenIds = [...spelled(replies[call] as string), ...tokenizer.encode('<|im_end|>')];
      return { tokenIds, logprobs: tokenIds.map((_, t) => -(t + 1) / 64) };
    },
    maxPositions: 4096,
  });
  const engine: Engine = { ...counting, doSample: (request) => scripted.doSample(request) };
  server = await createArtServer({ root: join(root, 'runs'), createEngine: async () => engine });
});
afterAll(async () => {
  await server.close();
  await rm(root, { recursive: true });
});

const tools = [
  {
    type: 'function' as const,
    function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } },
  },
];
const weatherOf: Readonly<Record<string, string>> = { Bern: 'rain', Rome: 'sun' };

/** An ordinary agent loop: it knows nothing of training but that it keeps choices. */
async function rollout(model: TrainableModel, reward: number): Promise<Trajectory> {
  const trajectory = new Trajectory({ messagesAndChoices: [{ role: 'user', content: 'Umbrella?' }], reward });
  for (;;) {
    const completion = await model.openaiClient().chat.completions.create({
      model: model.getInferenceName(),
      messages: trajectory.messages() as unknown as ChatCompletionMessageParam[],
      tools,
    });
    const choice = completion.choices[0];
    trajectory.messagesAndChoices.push(choice as ChatChoice);
    if (choice?.finish_reason !== 'tool_calls') return trajectory;
    for (const call of choice.message.tool_calls ?? []) {
      if (call.type !== 'function') throw new Error('a function is all there is');
      const { city } = JSON.parse(call.function.arguments) as { city: string };
      const content = weatherOf[city] ?? 'unknown';
      trajectory.messagesAndChoices.push({ role: 'tool', tool_call_id: call.id, content });
    }
  }
}

test('two turns with a tool between them are one training sequence of the sampled ids', async () => {
  const backend = new RemoteBackend({ baseURL: server.url });
  const init = { name: 'agent', project: 'test', baseModel: join(root, 'base'), lora: { rank: 4, alpha: 8 } };
  const model = new TrainableModel(init);
  await model.register(backend);
  const trajectories = [await rollout(model, 1), await rollout(model, 0)];
  const roles = trajectories[0]?.messages().map(({ role }) => role);
  expect(roles).toEqual(['user', 'assistant', 'tool', 'assistant']);
  await backend.train(model, [new TrajectoryGroup(trajectories)]);

  // Training shuffles sequences; the rewarded one has the higher advantage.
  const data = counting.requests
    .flatMap((request) => request.data)
    .sort((a, b) => (b.advantages.at(-1) ?? 0) - (a.advantages.at(-1) ?? 0));
  expect(data.length).toBe(2);
  for (const [index, datum] of data.entries()) {
    const turns = [2 * index, 2 * index + 1].map((call) => ({
      promptIds: scripted.requests[call]?.promptIds ?? [],
      tokenIds: [...(replies[call] as string)].flatMap((character) => tokenizer.encode(character)),
    }));
    const endId = tokenizer.encode('<|im_end|>');
    const [first, second] = turns.map(({ promptIds, tokenIds }) => [...promptIds, ...tokenIds, ...endId]);
    // The second prompt holds the first turn as it was sampled, not as the tokenizer would write it.
    expect(turns[1]?.promptIds.slice(0, first?.length)).toEqual(first);
    expect(datum.tokenIds).toEqual(second);
    const sampled = datum.tokenIds.filter((_, t) => datum.actionMask[t] === 1);
    expect(sampled).toEqual(turns.flatMap(({ tokenIds }) => [...tokenIds, ...endId]));
    const logprobs = datum.samplingLogprobs.filter((_, t) => datum.actionMask[t] === 1);
    expect(logprobs).toEqual(turns.flatMap(({ tokenIds }) => [...tokenIds, ...endId].map((_, t) => -(t + 1) / 64)));
  }
  // The stored trajectory tells the call as the agent got it.
  const { directory } = await backend.getState(model);
  const [line] = (await readFile(join(directory, 'trajectories', 'train', '0001.jsonl'), 'utf8')).split('\n');
  const { entries } = JSON.parse(line as string) as { entries: { message: Record<string, unknown> }[] };
  expect(entries[1]?.message.tool_calls).toMatchObject([
    { type: 'function', function: { name: 'weather', arguments: '{ "city":"Bern" }' } },
  ]);
});
