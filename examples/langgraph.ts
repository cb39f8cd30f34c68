/**
 * A LangGraph agent that is trained as it stands: nothing in it knows of training. Its reward asks for short answers.
 * Run: `npm run build && node dist/examples/langgraph.js MODEL_DIRECTORY [STEPS]`, with any Hugging Face chat model of this computer
 * (`npm run demo` writes one). Needs `npm install @langchain/core @langchain/langgraph @langchain/openai`, no network and no account.
 */
import { tool } from '@langchain/core/tools';
import { createReactAgent } from '@langchain/langgraph/prebuilt';
import { gatherTrajectoryGroups, LocalBackend, TrainableModel, trajectoryGroup } from '../src/index.ts';
import { initChatModel, wrapRollout } from '../src/integrations/langchain.ts';

const [baseModel, stepsText = '5'] = process.argv.slice(2);
if (baseModel === undefined) throw new Error('usage: node dist/examples/langgraph.js MODEL_DIRECTORY [STEPS]');
const steps = Number(stepsText);
const rolloutsPerGroup = 6;
const questions = ['Is it dry?', 'Sun or rain?'];

// 1. A model that learns, and the backend that samples from it and trains it.
await using backend = new LocalBackend({ path: '.art' });
const model = new TrainableModel({ name: 'langgraph', project: 'examples', baseModel });
await model.register(backend);

// 2. The agent, as LangGraph's users write it.
const weather = tool(async () => 'sunny', { name: 'weather', description: 'Now' });
const agent = createReactAgent({ llm: initChatModel(model, { maxTokens: 16, temperature: 1 }), tools: [weather] });

// 3. Its run as a rollout: the calls of the model become the trajectory, the score its reward.
const rollout = wrapRollout(
  model,
  async (question: string) => {
    const { messages } = await agent.invoke({ messages: [{ role: 'user', content: question }] });
    return messages.at(-1)?.text ?? '';
  },
  { reward: (answer) => 1 / (1 + answer.length) },
);

for (let step = await model.getStep(); step < steps; step++) {
  const groups = await gatherTrajectoryGroups(
    questions.map((question) =>
      trajectoryGroup(Array.from({ length: rolloutsPerGroup }, () => () => rollout(question))),
    ),
    { description: `step ${step + 1}/${steps}` },
  );
  const { metrics } = await backend.train(model, groups, { learningRate: 1e-3 });
  console.log(`step ${step + 1}: reward ${metrics['train/reward']?.toFixed(3)}`);
}
