/** How a judge behaves, summed over any number of groups: what RULER cost, what went wrong, how far its scores can be trusted. Layer 5. */
import { average, standardDeviation } from '../core/advantage.ts';
import { type TokenPrices, type TokenUsage, tokenCost } from '../core/token-cost.ts';
import type { Agreement } from './agreement.ts';
import type { JudgeProblem, ProblemCounts } from './judge-reply.ts';

/** Sums; all but the maximum of latencies add up over groups. */
const noTotals = {
  groups: 0,
  failedGroups: 0,
  failedRepeats: 0,
  calls: 0,
  reasks: 0,
  retries: 0,
  cacheHits: 0,
  cacheMisses: 0,
  cacheErrors: 0,
  promptTokens: 0,
  completionTokens: 0,
  cachedPromptTokens: 0,
  cost: 0,
  pricedCalls: 0,
  latencyMs: 0,
  maxLatencyMs: 0,
  scores: 0,
  scoreSum: 0,
  spreadSum: 0,
  spreadGroups: 0,
  pairs: 0,
  tiedPairs: 0,
  coercedScores: 0,
  repeatedTrajectories: 0,
  elidedHistories: 0,
  elidedCharacters: 0,
  tauSum: 0,
  taus: 0,
  differenceSum: 0,
  differences: 0,
};
type Totals = typeof noTotals;

export interface JudgeReport {
  readonly groups: number;
  readonly failedGroups: number;
  /** Of groups that other repeats scored. */
  readonly failedRepeats: number;
  /** Requests that were answered or failed; answers from the cache are none. */
  readonly calls: number;
  /** Calls that asked again because an answer was not usable as a whole. */
  readonly reasks: number;
  /** Calls that repeated one that was refused for load or broke off. */
  readonly retries: number;
  readonly problems: Readonly<ProblemCounts>;
  readonly cacheHits: number;
  readonly cacheMisses: number;
  /** Entries that could not be written. */
  readonly cacheErrors: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** In the currency of the prices; null if no call had prices. */
  readonly cost: number | null;
  readonly meanLatencySeconds: number;
  readonly maxLatencySeconds: number;
  readonly meanScore: number;
  /** Mean over groups of the standard deviation inside a group: near 0, the judge tells nothing apart. */
  readonly spread: number;
  /** Share of pairs in a group with equal scores, without trajectories that are identical. */
  readonly tieShare: number;
  /** Scores that were text. */
  readonly coercedScores: number;
  /** Trajectories that were scored with an identical one. */
  readonly repeatedTrajectories: number;
  readonly elidedHistories: number;
  readonly elidedCharacters: number;
  /** Mean over groups with repeats; null without. */
  readonly agreement: Agreement | null;
}

/** Collects over calls: give the same object to every call, read `report()`, log `metrics()`. */
export class JudgeHealth {
  #totals: Totals = { ...noTotals };
  #problems: ProblemCounts = {};

  /** Adds what another one has seen. */
  add(other: JudgeHealth): void {
    const maxLatencyMs = Math.max(this.#totals.maxLatencyMs, other.#totals.maxLatencyMs);
    for (const name of Object.keys(noTotals) as (keyof Totals)[]) this.#totals[name] += other.#totals[name];
    this.#totals.maxLatencyMs = maxLatencyMs;
    this.countProblems(other.#problems);
  }

  count(name: keyof Totals, amount = 1): void {
    this.#totals[name] += amount;
  }

  countProblems(problems: ProblemCounts): void {
    for (const [kind, count] of Object.entries(problems) as [JudgeProblem, number][]) {
      this.#problems[kind] = (this.#problems[kind] ?? 0) + count;
    }
  }

  countCall(latencyMs: number): void {
    this.count('calls');
    this.count('latencyMs', latencyMs);
    this.#totals.maxLatencyMs = Math.max(this.#totals.maxLatencyMs, latencyMs);
  }

  countUsage(usage: TokenUsage, prices: TokenPrices | null): void {
    this.count('promptTokens', usage.promptTokens);
    this.count('completionTokens', usage.completionTokens);
    this.count('cachedPromptTokens', usage.cachedPromptTokens ?? 0);
    if (prices === null) return;
    this.count('pricedCalls');
    this.count('cost', tokenCost(usage, prices));
  }

  /** Final scores of the distinct trajectories of one group. */
  countScores(scores: readonly number[], agreement: Agreement | null): void {
    this.count('scores', scores.length);
    this.count(
      'scoreSum',
      scores.reduce((sum, score) => sum + score, 0),
    );
    if (scores.length > 1) {
      this.count('spreadGroups');
      this.count('spreadSum', standardDeviation(scores));
    }
    for (let i = 0; i < scores.length; i++) {
      for (let j = i + 1; j < scores.length; j++) {
        this.count('pairs');
        if (scores[i] === scores[j]) this.count('tiedPairs');
      }
    }
    if (agreement === null) return;
    this.count('differences');
    this.count('differenceSum', agreement.meanAbsoluteDifference);
    if (agreement.kendallTau === null) return;
    this.count('taus');
    this.count('tauSum', agreement.kendallTau);
  }

  report(): JudgeReport {
    const t = this.#totals;
    const share = (part: number, whole: number): number => (whole === 0 ? 0 : part / whole);
    const { groups, failedGroups, failedRepeats, calls, reasks, retries, cacheHits, cacheMisses, cacheErrors } = t;
    const { promptTokens, completionTokens, coercedScores } = t;
    const { repeatedTrajectories, elidedHistories, elidedCharacters } = t;
    return {
      ...{ groups, failedGroups, failedRepeats, calls, reasks, retries, cacheHits, cacheMisses, cacheErrors },
      ...{ promptTokens, completionTokens, coercedScores },
      ...{ repeatedTrajectories, elidedHistories, elidedCharacters },
      problems: { ...this.#problems },
      cost: t.pricedCalls === 0 ? null : t.cost,
      meanLatencySeconds: share(t.latencyMs, calls) / 1000,
      maxLatencySeconds: t.maxLatencyMs / 1000,
      meanScore: share(t.scoreSum, t.scores),
      spread: share(t.spreadSum, t.spreadGroups),
      tieShare: share(t.tiedPairs, t.pairs),
      agreement:
        t.differences === 0
          ? null
          : {
              kendallTau: t.taus === 0 ? null : t.tauSum / t.taus,
              meanAbsoluteDifference: t.differenceSum / t.differences,
            },
    };
  }

  /** The report as metrics `judge/…`, and the cost as `costs/{split}/judge/ruler`. For `model.log([], { metrics })`. */
  metrics(split = 'train'): Record<string, number> {
    const { problems, cost, agreement, ...counts } = this.report();
    const metrics: Record<string, number> = {};
    for (const [name, value] of Object.entries(counts)) metrics[`judge/${snakeCase(name)}`] = value;
    for (const [kind, count] of Object.entries(problems)) metrics[`judge/problem/${kind}`] = count;
    if (cost !== null) metrics[`costs/${split}/judge/ruler`] = cost;
    if (agreement !== null) {
      if (agreement.kendallTau !== null) metrics['judge/kendall_tau'] = agreement.kendallTau;
      metrics['judge/mean_absolute_difference'] = agreement.meanAbsoluteDifference;
    }
    return metrics;
  }

  /** The report so far; counting begins again at 0. */
  take(): JudgeReport {
    const report = this.report();
    this.#totals = { ...noTotals };
    this.#problems = {};
    return report;
  }
}

function snakeCase(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Scores of several repeats as one, trajectory by trajectory. */
export function averageScores(repeats: readonly (readonly number[])[]): number[] {
  const [first = []] = repeats;
  return first.map((_, index) => average(repeats.map((scores) => scores[index] as number)));
}
