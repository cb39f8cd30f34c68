/** One scoring from trajectories to scores: what is shown, in which order, from the cache or from the judge, and the mean of repeats. Layer 5. */
import { JudgeError } from '../core/errors.ts';
import { canonicalJson } from '../core/json.ts';
import { createRng, shuffle } from '../core/rng.ts';
import { agreementOf } from './agreement.ts';
import { sha256 } from './json.ts';
import type { Judge } from './judge.ts';
import { defaultCacheDirectory, readCached, writeCached } from './judge-cache.ts';
import { averageScores, JudgeHealth } from './judge-health.ts';
import type { JudgeScore } from './judge-reply.ts';
import { askForScores } from './judge-rounds.ts';
import {
  fitMessages,
  type JudgedTrajectory,
  sharedMessages,
  sharedTools,
  type TrajectoryView,
  uniqueViews,
  viewTrajectory,
} from './judge-view.ts';
import { checkJudgingOptions, type JudgingOptions, type JudgingSettings, type ShownToJudge } from './ruler-options.ts';
import { buildPrompt, type PromptParts } from './ruler-prompt.ts';

export interface TrajectoryScore {
  /** Place in the input, from `1`. */
  readonly trajectoryId: string;
  /** From 0 to 1. */
  readonly score: number;
  /** Empty without `explanations`. */
  readonly explanation: string;
}

/** Scores in the order of the items. Throws JudgeError, DataError for a trajectory that is too long, ConfigError for wrong options. */
export async function judgeTrajectories<T extends JudgedTrajectory>(
  items: readonly T[],
  judge: Judge,
  options: JudgingOptions<T>,
): Promise<TrajectoryScore[]> {
  const settings = checkJudgingOptions(options);
  const health = options.health ?? new JudgeHealth();
  if (items.length === 0) return [];
  health.count('groups');
  try {
    const views = await Promise.all(items.map((item, index) => viewItem(item, index, options)));
    const { unique, indexes } = uniqueViews(views);
    health.count('repeatedTrajectories', views.length - unique.length);
    const parts = partsOf(unique, (at) => `trajectory ${indexes.indexOf(at) + 1}`, options, settings, health);
    const contents = unique.map((view) => canonicalJson(view));
    const repeats = await allThatWork(settings.repeats, (repeat) => {
      const order = orderOf(contents, settings.seed, repeat);
      return judgeInOrder(judge, parts, order, repeat, options, settings, health);
    });
    if (repeats.length < settings.repeats) health.count('failedRepeats', settings.repeats - repeats.length);
    const scores_R_G = repeats.map((scored) => scored.map(({ score }) => score));
    const scores_G = averageScores(scores_R_G);
    health.countScores(scores_G, agreementOf(scores_R_G));
    return indexes.map((at, index) => ({
      trajectoryId: String(index + 1),
      score: scores_G[at] as number,
      explanation: repeats.map((scored) => scored[at]?.explanation ?? '').find((text) => text !== '') ?? '',
    }));
  } catch (error) {
    health.count('failedGroups');
    throw error;
  }
}

/** Results of the repeats whose judge did not fail; rejects as the first one does if none is left, or if another error stands in the way. */
async function allThatWork<T>(count: number, work: (repeat: number) => Promise<T>): Promise<T[]> {
  const outcomes = await Promise.allSettled(Array.from({ length: count }, (_, repeat) => work(repeat)));
  const failures = outcomes.filter((outcome) => outcome.status === 'rejected').map(({ reason }) => reason as unknown);
  const results = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  const fatal = failures.find((error) => !(error instanceof JudgeError)) ?? (results.length === 0 ? failures[0] : null);
  if (fatal) throw fatal;
  return results;
}

/** Indexes in the order in which they are shown: it follows from content, seed and repeat, not from the order of the input. */
function orderOf(contents: readonly string[], seed: number, repeat: number): number[] {
  const byContent = contents.map((_, index) => index);
  byContent.sort((a, b) => ((contents[a] as string) < (contents[b] as string) ? -1 : 1));
  const digest = sha256(byContent.map((index) => contents[index]).join('\n'));
  return shuffle(byContent, createRng('ruler', seed, digest, repeat));
}

async function judgeInOrder(
  judge: Judge,
  parts: PromptParts,
  order: readonly number[],
  repeat: number,
  options: JudgingOptions<never>,
  settings: JudgingSettings,
  health: JudgeHealth,
): Promise<JudgeScore[]> {
  const prompt = buildPrompt({ ...parts, views: order.map((index) => parts.views[index] as TrajectoryView) });
  const { temperature, maxTokens, extraBody, hasExplanations } = settings;
  const identity = options.cache === false ? null : await judge.identity();
  const directory = identity === null ? null : options.cache || defaultCacheDirectory();
  let key = '';
  let scores: ReadonlyMap<string, JudgeScore> | null = null;
  if (directory !== null) {
    const asked = { format: 1, prompt, temperature, maxTokens, extraBody, hasExplanations, repeat };
    key = sha256(canonicalJson({ ...asked, judge: identity }));
    scores = await readCached(directory, key, prompt.ids);
    health.count(scores === null ? 'cacheMisses' : 'cacheHits');
  }
  if (scores === null) {
    scores = await askForScores(judge, prompt, settings, health);
    if (directory !== null && !(await writeCached(directory, key, scores))) health.count('cacheErrors');
  }
  const inInputOrder: JudgeScore[] = [];
  for (const [place, index] of order.entries()) inInputOrder[index] = scores.get(String(place + 1)) as JudgeScore;
  return inInputOrder;
}

function partsOf(
  views: readonly TrajectoryView[],
  nameOf: (index: number) => string,
  { groundTruth, environmentState }: JudgingOptions<never>,
  settings: JudgingSettings,
  health: JudgeHealth,
): PromptParts {
  const shared = sharedMessages(views);
  const shorten = (messages: readonly object[], what: string): readonly object[] => {
    const fitted = fitMessages(messages, settings, what);
    if (fitted.elidedCharacters > 0) {
      health.count('elidedHistories');
      health.count('elidedCharacters', fitted.elidedCharacters);
    }
    return fitted.messages;
  };
  return {
    rubric: settings.rubric,
    hasExplanations: settings.hasExplanations,
    context: shorten(views[0]?.histories[0].messages.slice(0, shared) ?? [], 'the shared beginning'),
    tools: sharedTools(views),
    groundTruth: typeof groundTruth === 'function' ? undefined : groundTruth,
    environmentState: typeof environmentState === 'function' ? undefined : environmentState,
    views: views.map((view, index) => {
      const [main, ...others] = view.histories;
      const first = { ...main, messages: shorten(main.messages.slice(shared), nameOf(index)) };
      const rest = others.map((history, at) => ({
        ...history,
        messages: shorten(history.messages, `${nameOf(index)}, additional history ${at + 1}`),
      }));
      return { ...view, histories: [first, ...rest] };
    }),
  };
}

async function viewItem<T extends JudgedTrajectory>(
  item: T,
  index: number,
  { groundTruth, environmentState }: JudgingOptions<T>,
): Promise<TrajectoryView> {
  const own = async (shown: ShownToJudge<T> | undefined): Promise<unknown> =>
    typeof shown === 'function' ? shown(item, index) : undefined;
  const [truth, state] = [await own(groundTruth), await own(environmentState)];
  return {
    ...viewTrajectory(item),
    ...(truth !== undefined && { groundTruth: truth }),
    ...(state !== undefined && { environmentState: state }),
  };
}
