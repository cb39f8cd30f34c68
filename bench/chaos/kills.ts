/** Kills the engine or the server of a run at random moments that a seed decides. */
import { createRng } from '../../src/core/rng.ts';
import { pause } from '../../src/core/wait.ts';
import type { KilledServer } from './server.ts';

export interface Killer {
  /** The run begins this step; kills that are due in it may happen. */
  readonly onStep: (step: number) => void;
  /** Resolves when every kill has happened. */
  readonly done: Promise<{ readonly engine: number; readonly server: number }>;
}

export interface KillPlan {
  readonly kills: number;
  readonly steps: number;
  readonly seed: number;
  /** How long an undisturbed step takes. */
  readonly stepMs: number;
}

/** Of the kills, those that come before the run has recovered from the one before. */
const hastyShare = 0.25;
const longestHasteMs = 400;
const engineRetryMs = 20;

/** Each kill is due in a step, all equally likely, and happens some time after it is due and the server answers. */
export function startKiller(server: KilledServer, { kills, steps, seed, stepMs }: KillPlan): Killer {
  const rng = createRng('chaos-kills', seed);
  const due = Array.from({ length: kills }, () => 1 + rng.integer(steps)).sort((a, b) => a - b);
  let current = 0;
  let wake = (): void => undefined;
  const reached = async (step: number): Promise<void> => {
    while (current < step) {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  const killOne = async (): Promise<'engine' | 'server'> => {
    const isHasty = rng.uniform() < hastyShare;
    if (!isHasty) await server.url();
    await pause(rng.uniform() * (isHasty ? longestHasteMs : stepMs));
    const target = rng.uniform() < 0.5 ? 'engine' : 'server';
    const kill = async (): Promise<boolean> => (target === 'engine' ? server.killEngine() : server.killServer());
    while (!(await kill())) await pause(engineRetryMs);
    return target;
  };
  const killAll = async (): Promise<{ engine: number; server: number }> => {
    const counts = { engine: 0, server: 0 };
    for (const step of due) {
      await reached(step);
      counts[await killOne()] += 1;
    }
    return counts;
  };
  return {
    done: killAll(),
    onStep: (step) => {
      current = step;
      wake();
    },
  };
}
