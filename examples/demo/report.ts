/** What the demo prints: one line a step, and the table of before and after. Numbers only from what was measured. */
import type { Style } from './style.ts';

export interface StepReport {
  readonly step: number;
  readonly steps: number;
  readonly reward: number;
  /** Standard deviation of the reward over the step's trajectories. */
  readonly rewardStd: number;
  readonly win: number;
  readonly draw: number;
  readonly loss: number;
  readonly illegal: number;
  /** Nats. */
  readonly entropy: number;
  /** Mismatch KL between sampler and trainer. */
  readonly mismatchKl: number;
  readonly rolloutSeconds: number;
  readonly sampleTokensPerSecond: number;
  readonly trainSeconds: number;
  readonly trainTokensPerSecond: number;
}

/** Shares of games. */
export interface GameShares {
  readonly win: number;
  readonly draw: number;
  readonly loss: number;
  readonly illegal: number;
}

export interface TableSection {
  /** As in `random opponent`. */
  readonly title: string;
  readonly before: GameShares;
  readonly after: GameShares;
}

/** One line; columns stay aligned from step to step. */
export function formatStep(report: StepReport, style: Style): string {
  const steps = String(report.steps);
  const parts = [
    style.bold(`step ${String(report.step).padStart(steps.length)}/${steps}`),
    `reward ${style.cyan(report.reward.toFixed(2).padStart(5))} ± ${report.rewardStd.toFixed(2)}`,
    `win ${percent(report.win)}`,
    `draw ${percent(report.draw)}`,
    `loss ${percent(report.loss)}`,
    `illegal ${percent(report.illegal)}`,
    `entropy ${report.entropy.toFixed(2)}`,
    `mismatch kl ${formatKl(report.mismatchKl)}`,
    style.dim(`rollout ${report.rolloutSeconds.toFixed(1)} s (${rate(report.sampleTokensPerSecond)})`),
    style.dim(`train ${report.trainSeconds.toFixed(1)} s (${rate(report.trainTokensPerSecond)})`),
  ];
  return parts.join('  ');
}

/** Before and after side by side, one block per opponent, with the change in points of percent. */
export function renderTable(sections: readonly TableSection[], style: Style): string {
  const width = Math.max(10, ...sections.map(({ title }) => title.length));
  const lines: string[] = [];
  for (const { title, before, after } of sections) {
    lines.push(
      style.bold(`${title.padEnd(width)}  ${'before'.padStart(8)}  ${'after'.padStart(8)}  ${'change'.padStart(8)}`),
    );
    for (const name of ['win', 'draw', 'loss', 'illegal'] as const) {
      const change = (after[name] - before[name]) * 100;
      const isBetter = name === 'win' || name === 'draw' ? change > 0 : change < 0;
      const text = `${change > 0 ? '+' : change < 0 ? '−' : ' '}${Math.abs(change).toFixed(1)}`.padStart(8);
      const coloured = change === 0 || name === 'draw' ? text : isBetter ? style.green(text) : style.red(text);
      lines.push(`${name.padStart(width)}  ${share(before[name])}  ${share(after[name])}  ${coloured}`);
    }
    lines.push('');
  }
  return lines.slice(0, -1).join('\n');
}

function percent(value: number): string {
  return `${String(Math.round(value * 100)).padStart(3)} %`;
}

function share(value: number): string {
  return `${(value * 100).toFixed(1)} %`.padStart(8);
}

/** Exactly zero is a statement of its own and looks like it. */
function formatKl(value: number): string {
  return value === 0 ? '0' : value.toExponential(1);
}

function rate(tokensPerSecond: number): string {
  return `${Math.round(tokensPerSecond).toLocaleString('en-US')} tok/s`;
}
