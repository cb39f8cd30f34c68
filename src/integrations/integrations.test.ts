/** Frameworks as their users write them, on a model of ours, inside captures. OpenAI's agents and Mastra: test/clients. */
import { tool as langChainTool } from '@langchain/core/tools';
import { createReactAgent } from '@langchain/langgraph/prebuilt';
import { generateObject, generateText, stepCountIs, streamText, ToolLoopAgent, tool } from 'ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { type ScriptedBackend, startScriptedBackend } from '../../test/scripted-backend.ts';
import { weatherAnswer, weatherQuestion, weatherReply } from '../../test/weather-policy.ts';
import {
  ConfigError,
  captureTrajectory,
  currentTrajectory,
  gatherTrajectoryGroups,
  Model,
  TrainableModel,
  type Trajectory,
  trajectoryGroup,
} from '../index.ts';
import { art, createArt } from './ai-sdk.ts';
import { initChatModel, wrapRollout } from './langchain.ts';
import { mastraModel } from './mastra.ts';
import { createModelProvider } from './openai-agents.ts';

let scripted: ScriptedBackend;
let model: TrainableModel;
beforeAll(async () => {
  scripted = await startScriptedBackend((prompt, { sampling }) =>
    weatherReply(prompt, sampling.constraint?.type === 'jsonSchema'),
  );
  model = scripted.model;
});
afterAll(() => scripted[Symbol.asyncDispose]());

/** A question, a call of the tool, its result, the answer: two turns of one history, with the tool. */
function expectWeather(trajectory: Trajectory): void {
  expect(trajectory.messages().map(({ role }) => role)).toEqual(['user', 'assistant', 'tool', 'assistant']);
  expect(trajectory.messages().at(-1)?.content).toBe(weatherAnswer);
  expect(trajectory.allChoices().map((choice) => choice.finish_reason)).toEqual(['tool_calls', 'stop']);
  expect(trajectory.additionalHistories).toEqual([]);
  expect(trajectory.tools).toMatchObject([{ type: 'function', function: { name: 'weather' } }]);
}

const inputSchema = z.object({ city: z.string() });
const tools = {
  weather: tool({ description: 'Weather', inputSchema, execute: async ({ city }) => `sunny in ${city}` }),
};

test('AI SDK: generateText, streamText and ToolLoopAgent at once, each its own trajectory', async () => {
  const languageModel = art(model);
  const options = { model: languageModel, tools, stopWhen: stepCountIs(3), maxRetries: 0 };
  const agents: (() => Promise<string>)[] = [
    async () => (await generateText({ ...options, prompt: weatherQuestion })).text,
    async () => {
      let text = '';
      for await (const part of streamText({ ...options, prompt: weatherQuestion }).textStream) text += part;
      return text;
    },
    async () => (await new ToolLoopAgent(options).generate({ prompt: weatherQuestion })).text,
  ];
  const captured = await Promise.all([...agents, ...agents].map((agent) => captureTrajectory(agent, { model })));
  for (const { trajectory, output } of captured) {
    expect(output).toBe(weatherAnswer);
    expectWeather(trajectory);
  }
});

test('AI SDK: the provider gives any policy of the server, and objects by a schema', async () => {
  const provider = createArt({ model });
  expect([provider().modelId, provider('agent@0').modelId, art(model, { step: 0 }).modelId]).toEqual([
    'agent',
    'agent@0',
    'agent@0',
  ]);
  const schema = z.object({ city: z.string(), degrees: z.number() });
  const { output, trajectory } = await captureTrajectory(() =>
    generateObject({ model: provider.languageModel('agent'), schema, maxRetries: 0, prompt: 'Where is it warm?' }),
  );
  expect(output.object).toEqual({ city: 'Paris', degrees: 21 });
  expect(trajectory.allChoices()).toHaveLength(1);
});

const lookUp = langChainTool(async ({ city }) => `sunny in ${city}`, {
  name: 'weather',
  description: 'Weather',
  schema: inputSchema,
});
const question = { messages: [{ role: 'user', content: weatherQuestion }] };

test('LangGraph: an agent, and a function around one, become rollouts that can be gathered and trained', async () => {
  const graph = createReactAgent({ llm: initChatModel(model, { maxRetries: 0 }), tools: [lookUp] });
  const byGraph = wrapRollout(model, graph, { reward: ({ messages }) => messages.length });
  const byFunction = wrapRollout(model, async (city: string) => {
    const { messages } = await graph.invoke(question);
    currentTrajectory()?.log(`asked for ${city}`);
    return String(messages.at(-1)?.content);
  });
  const rollouts = [() => byGraph(question), () => byFunction('Paris'), () => byGraph(question)];
  const [group] = await gatherTrajectoryGroups([trajectoryGroup(rollouts)]);
  const [first, second] = group?.trajectories ?? [];
  expect(group?.trajectories.map(({ reward }) => reward)).toEqual([4, 0, 4]);
  expect(second?.logs).toEqual(['asked for Paris']);
  for (const trajectory of [first, second]) expectWeather(trajectory as Trajectory);
});

test('LangChain: streamed agents, and errors of the agent', async () => {
  const graph = createReactAgent({ llm: initChatModel(model, { streaming: true }), tools: [lookUp] });
  const { trajectory } = await captureTrajectory(async () => {
    for await (const _part of await graph.stream(question, { streamMode: 'messages' }));
  });
  expectWeather(trajectory);
  const failing = wrapRollout(model, async () => {
    await initChatModel(model).invoke('Hi');
    throw new RangeError('no such city');
  });
  await expect(failing()).rejects.toThrow(RangeError);
});

test('OpenAI’s agents and Mastra get what they take, without being imported', async () => {
  const asked: (string | undefined)[] = [];
  class OpenAIProvider {
    readonly options: object;
    constructor(options: object) {
      this.options = options;
    }
    getModel(name?: string): object {
      asked.push(name);
      return this.options;
    }
  }
  const { baseURL, apiKey } = model.endpoint();
  const provider = createModelProvider(model, { OpenAIProvider });
  expect(await provider.getModel()).toEqual({ baseURL, apiKey, useResponses: true });
  await provider.getModel('judge');
  await createModelProvider(model, { OpenAIProvider, step: 0, useResponses: false }).getModel('');
  expect(asked).toEqual(['agent', 'judge', 'agent@0']);
  expect(mastraModel(model)).toEqual({ providerId: 'art', modelId: 'agent', url: baseURL, apiKey });
});

test('a model to compare with fits too; one that is not registered is refused, and so are options that the model says', () => {
  const endpoint = { inferenceBaseURL: 'http://127.0.0.1:9/v1', inferenceApiKey: 'x', inferenceModelName: 'gpt' };
  const prompted = new Model({ name: 'prompted', project: 'tests', ...endpoint });
  expect(art(prompted).modelId).toBe('gpt');
  expect(initChatModel(prompted).model).toBe('gpt');
  const unregistered = new TrainableModel({ name: 'new', project: 'tests', baseModel: './x' });
  for (const make of [art, initChatModel, mastraModel]) expect(() => make(unregistered)).toThrow(/must be registered/);
  expect(() => initChatModel(model, { apiKey: 'x' } as object)).toThrow(ConfigError);
  expect(() => createArt({ model, url: 'x' } as never)).toThrow(/known options are model, headers; got url/);
});
