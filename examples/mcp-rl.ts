/**
 * MCP-RL: a model learns to use the tools of an MCP server. A generator writes scenarios from what the tools are, the agent tries each several
 * times, RULER ranks the tries, GRPO trains. Run:
 *   npm run build && node dist/examples/mcp-rl.js MODEL JUDGE [STEPS] [-- COMMAND ARGS…]
 * MODEL: a Hugging Face folder or id. JUDGE: who writes scenarios and ranks, as in openai/gpt-5-mini or ollama/qwen3:32b. COMMAND: the MCP
 * server; without it a small shop. Run it again and it goes on where it stopped.
 */
import {
  deriveSeed,
  gatherTrajectoryGroups,
  LocalBackend,
  rulerScoreGroup,
  TrainableModel,
  trajectoryGroup,
} from '../src/index.ts';
import {
  connectMcp,
  generateScenarios,
  type McpScenario,
  type McpServer,
  mcpRollout,
  splitScenarios,
} from '../src/mcp/index.ts';

const seed = 0;
const rolloutsPerScenario = 4;
const scenariosPerStep = 4;

const split = process.argv.indexOf('--');
const [baseModel, judge, stepsText = '10'] = process.argv.slice(2, split === -1 ? undefined : split);
if (baseModel === undefined || judge === undefined) {
  throw new Error('usage: node dist/examples/mcp-rl.js MODEL JUDGE [STEPS] [-- COMMAND ARGS…]');
}
const shop = [process.execPath, new URL('mcp/server.js', import.meta.url).pathname];
const [command = '', ...args] = split === -1 ? shop : process.argv.slice(split + 1);
const server: McpServer = { command, args };

await using backend = new LocalBackend({ path: '.art' });
const model = new TrainableModel({ name: 'mcp-rl', project: 'mcp', baseModel, seed });
await model.register(backend);
await using session = await connectMcp(server);

// Scenarios are written once and kept with the run.
const state = await model.readState();
const { tools, resources } = session;
const scenarios =
  (state.scenarios as McpScenario[] | undefined) ??
  (await generateScenarios({ tools, resources, generatorModel: judge, count: 24 }));
await model.mergeState({ scenarios });
const { train } = splitScenarios(scenarios, { validation: 4, seed });

for (let step = await model.getStep(); step < Number(stepsText); step++) {
  const groups = await gatherTrajectoryGroups(
    Array.from({ length: scenariosPerStep }, (_, i) => {
      const { task, difficulty } = train[(step * scenariosPerStep + i) % train.length] as McpScenario;
      const rollouts = Array.from(
        { length: rolloutsPerScenario },
        (_rollout, j) =>
          ({ signal }: { signal: AbortSignal }) =>
            mcpRollout(model, session, { task, seed: deriveSeed(seed, 'rollout', step, i, j), maxTokens: 256, signal }),
      );
      return trajectoryGroup(rollouts, { metadata: { task, difficulty } });
    }),
    {
      description: `step ${step + 1}/${stepsText}`,
      maxExceptions: 0.1,
      // A group that cannot be judged is left out; the others are trained.
      afterEach: (group) => rulerScoreGroup(group, judge, { swallowExceptions: true }),
    },
  );
  const { metrics } = await backend.train(model, groups, { learningRate: 1e-4, seed: deriveSeed(seed, 'train', step) });
  console.log(`step ${step + 1}`, { reward: metrics['train/reward'], answered: metrics['train/has_answered'] });
}
