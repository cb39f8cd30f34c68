/**
 * The whole algorithm on the public API: GRPO on a LoRA adapter of a small model, which learns tic-tac-toe against a random opponent.
 * Run: `npm run build && node dist/examples/rl-loop.js MODEL_DIRECTORY [STEPS]`, with any Hugging Face chat model of this computer
 * (`npm run demo` writes one). Run it again and it goes on where it stopped.
 * Left out, and found in demo.ts: the starter model and its warm-up, schedules of learning rate and turn discount, plots, clean stopping.
 */
import { deriveSeed, gatherTrajectoryGroups, LocalBackend, TrainableModel, trajectoryGroup } from '../src/index.ts';
import { evaluate } from './tic-tac-toe/evaluate.ts';
import { rollout, type Scenario } from './tic-tac-toe/rollout.ts';

const seed = 0;
const groupsPerStep = 8;
const rolloutsPerGroup = 16;

const [baseModel, stepsText = '20'] = process.argv.slice(2);
if (baseModel === undefined) throw new Error('usage: node dist/examples/rl-loop.js MODEL_DIRECTORY [STEPS]');
const steps = Number(stepsText);

/** A group's scenario is its side; each of its games meets an opponent with random replies of its own. */
function createScenario(group: number, gameSeed: number): Scenario {
  return { side: group % 2 === 0 ? 'X' : 'O', seed: gameSeed, opponent: 'random' };
}

// 1. A model that learns, and the backend that samples from it and trains it. Registering resumes from the newest checkpoint.
await using backend = new LocalBackend({ path: '.art' });
const model = new TrainableModel({
  name: 'rl-loop',
  project: 'tic-tac-toe',
  baseModel,
  lora: { rank: 16, alpha: 64 },
  seed,
});
await model.register(backend);

for (let step = await model.getStep(); step < steps; step++) {
  // 2. Rollouts: whole games, several per scenario. Each reply is sampled by the policy of this step, with a seed of its own.
  const groups = await gatherTrajectoryGroups(
    Array.from({ length: groupsPerStep }, (_, group) =>
      trajectoryGroup(
        Array.from({ length: rolloutsPerGroup }, (_, game) => ({ signal }) => {
          const gameSeed = deriveSeed(seed, 'rollout', step, group, game);
          return rollout(model, createScenario(group, gameSeed), { temperature: 1, seed: gameSeed, signal });
        }),
      ),
    ),
    { description: `step ${step + 1}/${steps}` },
  );

  // 3. Training: the advantage of a game is its reward against the mean of its group; the tokens are those that were sampled.
  const { metrics } = await backend.train(model, groups, {
    learningRate: 1e-3,
    loss: 'ppo',
    clipHigh: 0.3,
    gradientSteps: 4,
    epochs: 2,
    turnDiscount: 0.8,
    entropyBonus: 0.01,
    seed: deriveSeed(seed, 'train', step),
  });
  const shown = ['train/reward', 'train/win', 'train/illegal', 'loss/entropy', 'loss/mismatch_kl'];
  console.log(
    `step ${step + 1}`,
    Object.fromEntries(shown.filter((name) => name in metrics).map((name) => [name, metrics[name]])),
  );
}

// 4. How good has it become? Greedy games at seeds that were not trained on.
const { win, draw, loss, trajectories } = await evaluate(model, { opponent: 'random', games: 200, seed });
await model.log(trajectories, { split: 'val' });
console.log({ win, draw, loss });
