/** How well a policy plays: greedy games at fixed seeds, both sides equally. */
import { type ChatModel, deriveSeed, gatherTrajectories, type Trajectory } from '../../src/index.ts';
import type { OpponentName } from './game.ts';
import { type Result, rollout } from './rollout.ts';

export interface EvaluateOptions {
  readonly opponent: OpponentName;
  /** Default 400. */
  readonly games?: number;
  /** Default: the newest policy. */
  readonly step?: number;
  /** Decides the opponent's replies; default 0. */
  readonly seed?: number;
  /** Games played at once; default 128. */
  readonly concurrency?: number;
  readonly signal?: AbortSignal;
}

/** Shares of games. `loss` includes games lost by an illegal move. */
export interface Evaluation extends Readonly<Record<Result, number>> {
  readonly trajectories: readonly Trajectory[];
}

/** Plays `games` games, X in the even ones. One failing game fails the evaluation: a share of the rest would be another number. */
export async function evaluate(model: ChatModel, options: EvaluateOptions): Promise<Evaluation> {
  const { opponent, games = 400, step, seed = 0, concurrency = 128, signal } = options;
  const rollouts = Array.from({ length: games }, (_, game) => (context: { readonly signal: AbortSignal }) => {
    const scenario = {
      side: game % 2 === 0 ? 'X' : 'O',
      seed: deriveSeed(seed, 'evaluation', game),
      opponent,
    } as const;
    const policy = step === undefined ? {} : { step };
    return rollout(model, scenario, { temperature: 0, seed: scenario.seed, signal: context.signal, ...policy });
  });
  const trajectories = await gatherTrajectories(rollouts, {
    description: `${opponent} opponent`,
    maxConcurrency: concurrency,
    ...(signal === undefined ? {} : { signal }),
  });
  const share = (name: Result): number =>
    trajectories.reduce((sum, trajectory) => sum + Number(trajectory.metrics[name]), 0) / games;
  return { win: share('win'), draw: share('draw'), loss: share('loss'), illegal: share('illegal'), trajectories };
}
