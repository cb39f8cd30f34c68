/**
 * `npm run demo`: from a random model to a strong tic-tac-toe player on this computer's CPU, and what came of it.
 * Everything is decided by `--seed`; stopped at any moment, it goes on from the last checkpoint when it is started again.
 * Options: --json (last line is JSON), --seed N, --steps N, --root DIR, --fresh (forget an earlier run of this seed).
 */
import { createHash } from 'node:crypto';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';
import {
  AbortedError,
  CheckpointError,
  ConfigError,
  deriveSeed,
  gatherTrajectoryGroups,
  type HistoryRow,
  LocalBackend,
  type ModelState,
  TrainableModel,
  type TrajectoryGroup,
  trajectoryGroup,
} from '../src/index.ts';
import { prepareBaseModel } from './demo/base-model.ts';
import { createBar } from './demo/progress-bar.ts';
import { evaluationGames, lora, reinforcement } from './demo/recipe.ts';
import { formatStep, type GameShares, renderTable } from './demo/report.ts';
import { renderRewardSvg } from './demo/reward-svg.ts';
import { createStopSignal } from './demo/stop-signal.ts';
import { createStyle } from './demo/style.ts';
import { renderTerminalPlot } from './demo/terminal-plot.ts';
import { evaluate } from './tic-tac-toe/evaluate.ts';
import type { OpponentName } from './tic-tac-toe/game.ts';
import { rollout, type Scenario } from './tic-tac-toe/rollout.ts';

const PROJECT = 'tic-tac-toe';
const OPPONENTS: readonly OpponentName[] = ['random', 'perfect'];

interface DemoOptions {
  readonly seed: number;
  readonly steps: number;
  readonly root: string;
  readonly isJson: boolean;
  readonly isFresh: boolean;
}

function readOptions(): DemoOptions {
  const { values } = parseArgs({
    options: {
      json: { type: 'boolean', default: false },
      fresh: { type: 'boolean', default: false },
      seed: { type: 'string', default: '0' },
      steps: { type: 'string', default: String(reinforcement.steps) },
      root: { type: 'string', default: '.art' },
    },
  });
  const whole = (name: string, text: string): number => {
    if (!/^\d{1,9}$/.test(text)) throw new Error(`--${name}: must be a whole number, got '${text}'`);
    return Number(text);
  };
  return {
    seed: whole('seed', values.seed),
    steps: whole('steps', values.steps),
    root: values.root,
    isJson: values.json,
    isFresh: values.fresh,
  };
}

type SharesByOpponent = Readonly<Record<OpponentName, GameShares>>;

interface DemoOutcome {
  readonly before: SharesByOpponent;
  readonly after: SharesByOpponent;
  readonly steps: number;
}

interface DemoNumbers {
  readonly seed: number;
  readonly seconds: number;
  readonly peakMemoryMb: number;
  readonly parameters: number;
  /** Shares of games against the random opponent. */
  readonly before: GameShares;
  readonly after: GameShares;
  readonly steps: number;
  readonly sampleTokensPerSecond: number | null;
  readonly trainTokensPerSecond: number | null;
  readonly maxMismatchKl: number;
  readonly adapterSha256: string;
}

/** One demo run; fields are what its stages share. */
class Demo {
  readonly #options: DemoOptions;
  readonly #style = createStyle();
  readonly #startedAt = performance.now();
  readonly #signal: AbortSignal;
  #peakEngineBytes = 0;

  constructor(options: DemoOptions, signal: AbortSignal) {
    this.#options = options;
    this.#signal = signal;
  }

  async run(): Promise<void> {
    const { root, seed, isFresh } = this.#options;
    const name = `demo-${seed}`;
    if (isFresh) await this.#forget(name);
    const baseModel = await this.#warmUp();
    await using backend = new LocalBackend({ path: root });
    const model = new TrainableModel({ name, project: PROJECT, baseModel, lora, seed });
    await model.register(backend, { signal: this.#signal });
    const resumedAt = await model.getStep();
    if (resumedAt > 0) this.#say(`Resuming after step ${resumedAt}.`);
    const before = resumedAt === 0 ? await this.#evaluate(model, 0) : await this.#readShares(backend, model, 0);
    for (let step = resumedAt; step < this.#options.steps; step++) await this.#trainStep(backend, model, step);
    // A run that an earlier call took further is shown as it is, not as it was.
    const last = Math.max(resumedAt, this.#options.steps);
    const after = await this.#evaluate(model, last);
    await this.#report(backend, model, { before, after, steps: last });
  }

  #say(text: string): void {
    process.stdout.write(`${text}\n`);
  }

  async #forget(name: string): Promise<void> {
    const { root, seed } = this.#options;
    for (const folder of [`models/${name}`, `base/starter-${seed}`, `base/warm-${seed}`]) {
      await rm(join(root, PROJECT, folder), { recursive: true, force: true });
    }
  }

  /** The directory of the warmed-up base model. */
  async #warmUp(): Promise<string> {
    const { root, seed } = this.#options;
    const bar = createBar('warm-up on random games');
    try {
      const { directory, peakRssBytes } = await prepareBaseModel({
        root: join(root, PROJECT, 'base'),
        seed,
        signal: this.#signal,
        onStarter: (starter) => this.#say(`A model with random weights: ${starter}`),
        onProgress: ({ step, steps, loss, tokens, seconds }) => {
          bar.update(
            step,
            steps,
            `loss ${loss.toFixed(2)}  ${Math.round(tokens / seconds).toLocaleString('en-US')} tok/s`,
          );
        },
      });
      this.#peakEngineBytes = peakRssBytes;
      this.#say(`Warmed up on random legal games, so that it knows what a move looks like: ${directory}`);
      return directory;
    } finally {
      bar.stop();
    }
  }

  /** Plays against both opponents with the newest policy, which is that of `step`, and keeps the games in the history. */
  async #evaluate(model: TrainableModel, step: number): Promise<SharesByOpponent> {
    const results: Partial<Record<OpponentName, GameShares>> = {};
    for (const opponent of OPPONENTS) {
      const { trajectories, ...shares } = await evaluate(model, {
        opponent,
        games: evaluationGames,
        seed: deriveSeed(this.#options.seed, 'evaluation'),
        signal: this.#signal,
      });
      results[opponent] = shares;
      await model.log(trajectories, { split: splitOf(opponent), step });
      this.#say(
        `${step === 0 ? 'Before' : 'After'}, against ${opponent} play, ${evaluationGames} games: ` +
          `win ${percent(shares.win)}, draw ${percent(shares.draw)}, loss ${percent(shares.loss)} (illegal ${percent(shares.illegal)})`,
      );
    }
    return results as SharesByOpponent;
  }

  /** What an earlier process measured. */
  async #readShares(backend: LocalBackend, model: TrainableModel, step: number): Promise<SharesByOpponent> {
    const rows = await backend.history(model);
    const read = (opponent: OpponentName): GameShares => {
      const split = splitOf(opponent);
      const row = rows.find((candidate) => candidate.split === split && candidate.step === step);
      const share = (name: string): number => Number(row?.[`${split}/${name}`] ?? Number.NaN);
      return { win: share('win'), draw: share('draw'), loss: share('loss'), illegal: share('illegal') };
    };
    return { random: read('random'), perfect: read('perfect') };
  }

  async #trainStep(backend: LocalBackend, model: TrainableModel, step: number): Promise<void> {
    const { seed, steps } = this.#options;
    const rolloutStartedAt = performance.now();
    const groups = await this.#gather(model, step);
    const rolloutSeconds = (performance.now() - rolloutStartedAt) / 1000;
    const bar = createBar('train');
    const trainStartedAt = performance.now();
    const { loss, clipLow, clipHigh, gradientSteps, epochs, entropyBonus, turnDiscount } = reinforcement;
    const progress = Math.min(1, step / Math.max(1, steps - 1));
    const { metrics } = await backend
      .train(
        model,
        groups,
        {
          learningRate: reinforcement.learningRate * (1 - (1 - reinforcement.finalLearningRate) * progress),
          loss,
          clipLow,
          clipHigh,
          gradientSteps,
          epochs,
          turnDiscount: turnDiscount.first + (turnDiscount.last - turnDiscount.first) * progress,
          entropyBonus,
          seed: deriveSeed(seed, 'train', step),
        },
        { onProgress: ({ stage, done, total }) => bar.update(done, total, stage) },
      )
      .finally(() => bar.stop());
    const trainSeconds = (performance.now() - trainStartedAt) / 1000;
    const sampledTokens = metrics['data/step_trainable_assistant_tokens'] ?? 0;
    await model.log([], {
      split: 'rollout',
      step: step + 1,
      metrics: {
        'time/step_actor_s': rolloutSeconds,
        'throughput/avg_actor_tok_per_s': sampledTokens / rolloutSeconds,
      },
    });
    const metric = (name: string): number => metrics[name] ?? Number.NaN;
    this.#say(
      formatStep(
        {
          step: step + 1,
          steps,
          reward: metric('train/reward'),
          rewardStd: metric('train/reward_std_dev'),
          win: metric('train/win'),
          draw: metric('train/draw'),
          loss: metric('train/loss'),
          illegal: metric('train/illegal'),
          entropy: metric('loss/entropy'),
          mismatchKl: metric('loss/mismatch_kl'),
          rolloutSeconds,
          sampleTokensPerSecond: sampledTokens / rolloutSeconds,
          trainSeconds,
          trainTokensPerSecond: metric('data/step_trainer_tokens') / trainSeconds,
        },
        this.#style,
      ),
    );
  }

  /** Whole games in groups of one scenario: half of the groups play X, half O. */
  #gather(model: TrainableModel, step: number): Promise<TrajectoryGroup[]> {
    const { seed, steps } = this.#options;
    const groups = Array.from({ length: reinforcement.groupsPerStep }, (_, group) => {
      const side = group % 2 === 0 ? 'X' : 'O';
      const games = Array.from({ length: reinforcement.rolloutsPerGroup }, (_, game) => {
        const rolloutSeed = deriveSeed(seed, 'rollout', step, group, game);
        const scenario: Scenario = { side, seed: rolloutSeed, opponent: 'random' };
        return ({ signal }: { readonly signal: AbortSignal }) =>
          rollout(model, scenario, { temperature: 1, seed: rolloutSeed, signal });
      });
      return trajectoryGroup(games, { metadata: { side } });
    });
    const { maxConcurrency } = reinforcement;
    return gatherTrajectoryGroups(groups, {
      description: `step ${step + 1}/${steps}`,
      maxConcurrency,
      signal: this.#signal,
    });
  }

  async #report(backend: LocalBackend, model: TrainableModel, outcome: DemoOutcome): Promise<void> {
    const { before, after, steps } = outcome;
    const state = await backend.getState(model);
    const rows = (await backend.history(model)).filter(({ split }) => split === 'train');
    const curve = rows.map((row) => ({ x: Number(row.step), y: Number(row['train/reward']) }));
    const svgPath = join(state.directory, 'reward.svg');
    const title = 'Tic-tac-toe: reward by training step';
    await writeFile(svgPath, renderRewardSvg([{ name: 'mean reward', points: curve }], { title }));
    const checkpoint = join(state.directory, 'checkpoints', String(steps).padStart(4, '0'));
    const numbers = await this.#measure(state, rows, checkpoint, outcome);
    this.#say(`\n${renderTerminalPlot(curve, { title: 'mean reward of the training games' })}\n`);
    const sections = OPPONENTS.map((opponent) => ({
      title: `${opponent} opponent`,
      before: before[opponent],
      after: after[opponent],
    }));
    this.#say(renderTable(sections, this.#style));
    const shown = (path: string): string => relative('.', path) || '.';
    const { seed, seconds, peakMemoryMb, parameters, maxMismatchKl } = numbers;
    const lines = [
      '',
      `${seconds.toFixed(0)} s, ${peakMemoryMb.toFixed(0)} MB at most, ${parameters.toLocaleString('en-US')} parameters, seed ${seed}.`,
      `Sampler against trainer on the same tokens: mismatch KL at most ${maxMismatchKl}.`,
      `Reward curve   ${shown(svgPath)}`,
      `History        ${shown(join(state.directory, 'history.jsonl'))}`,
      `Adapter (PEFT) ${shown(checkpoint)}`,
      '',
      'Next:',
      `  npm run demo -- --seed ${seed + 1}      the same with other random numbers`,
      `  npm run demo -- --steps ${steps + 10}     train this one further`,
      '  examples/rl-loop.ts           the whole algorithm in one short file: start your own from it',
    ];
    this.#say(lines.join('\n'));
    if (this.#options.isJson) this.#say(JSON.stringify(numbers));
  }

  /** What `--json` prints; rates are null where this process neither sampled nor trained. */
  async #measure(
    state: ModelState,
    rows: readonly HistoryRow[],
    checkpoint: string,
    { before, after, steps }: DemoOutcome,
  ): Promise<DemoNumbers> {
    const adapter = await readFile(join(checkpoint, 'adapter_model.safetensors'));
    const { sampledTokens, samplingSeconds, trainedTokens, trainingSeconds, peakRssBytes } = state.engine;
    const engineBytes = Math.max(this.#peakEngineBytes, peakRssBytes);
    const rate = (tokens: number, seconds: number): number | null => (tokens > 0 ? tokens / seconds : null);
    return {
      seed: this.#options.seed,
      seconds: (performance.now() - this.#startedAt) / 1000,
      peakMemoryMb: (process.resourceUsage().maxRSS * 1024 + engineBytes) / 1e6,
      parameters: state.parameters,
      before: before.random,
      after: after.random,
      steps,
      sampleTokensPerSecond: rate(sampledTokens, samplingSeconds),
      trainTokensPerSecond: rate(trainedTokens, trainingSeconds),
      maxMismatchKl: Math.max(0, ...rows.map((row) => Math.abs(Number(row['loss/mismatch_kl'] ?? 0)))),
      adapterSha256: createHash('sha256').update(adapter).digest('hex'),
    };
  }
}

function splitOf(opponent: OpponentName): string {
  return opponent === 'random' ? 'val' : `val_${opponent}`;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** Runs the demo; a message instead of a stack where the user's own words are at fault, or where the user stopped it. */
async function main(): Promise<number> {
  let options: DemoOptions;
  try {
    options = readOptions();
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : error}\n`);
    return 2;
  }
  const stop = createStopSignal(() => {
    process.stderr.write('\nStopping; press Ctrl-C again to stop at once.\n');
  });
  try {
    await new Demo(options, stop.signal).run();
    return 0;
  } catch (error) {
    if (error instanceof ConfigError || error instanceof CheckpointError) {
      process.stderr.write(
        `${error.message}\nStart afresh with --fresh, which removes what this seed left under --root.\n`,
      );
      return 1;
    }
    if (!stop.signal.aborted) throw error;
    if (!(error instanceof AbortedError)) process.stderr.write(`${error instanceof Error ? error.message : error}\n`);
    process.stderr.write(
      'Stopped. The same command goes on from the last checkpoint; a warm-up that was cut short starts over.\n',
    );
    return 130;
  } finally {
    stop.dispose();
  }
}

process.exitCode = await main();
