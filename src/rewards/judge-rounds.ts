/** Asking one judge for the scores of one prompt until all are there: bounded re-asks for what is missing, bounded retries. Layer 5. */
import { AbortedError, ApiError, DataError, JudgeError, messageOf } from '../core/errors.ts';
import { pause } from '../core/wait.ts';
import type { Judge } from './judge.ts';
import type { JudgeHealth } from './judge-health.ts';
import { type JudgeProblem, type JudgeScore, type ProblemCounts, readReply } from './judge-reply.ts';
import type { JudgeReply } from './judge-transport.ts';
import { answerSchema, nameOf, type RulerPrompt, reaskText } from './ruler-prompt.ts';

export interface RoundOptions {
  readonly temperature: number | null;
  readonly maxTokens: number;
  readonly extraBody: Readonly<Record<string, unknown>>;
  readonly hasExplanations: boolean;
  /** Of one request, its body included. */
  readonly timeoutMs: number;
  /** Further requests after an answer that is not usable as a whole, a refusal or a time-out. */
  readonly maxReasks: number;
  /** Further requests after one that was turned away for load or broke off. */
  readonly maxRetries: number;
  /** Pause before the first retry; it doubles with each, up to 30 s. What the server asks for counts more, up to 30 s. */
  readonly retryDelayMs: number;
  readonly signal: AbortSignal | undefined;
  readonly debug: (text: string) => void;
}

const MAX_PAUSE_MS = 30_000;

type Answer =
  | { readonly reply: JudgeReply }
  | { readonly fault: JudgeProblem; readonly error: unknown; readonly isRetryable: boolean };

/**
 * A score for every id of the prompt. At most 1 + maxReasks + maxRetries requests, and four more while an endpoint's form is found out.
 * Throws JudgeError with the counts of what went wrong, AbortedError when the signal fires.
 */
export async function askForScores(
  judge: Judge,
  prompt: RulerPrompt,
  options: RoundOptions,
  health: JudgeHealth,
): Promise<Map<string, JudgeScore>> {
  const scores = new Map<string, JudgeScore>();
  const problems: ProblemCounts = {};
  let [reasks, retries] = [0, 0];
  let faults = '';
  while (true) {
    const missing = prompt.ids.filter((id) => !scores.has(id));
    const user = faults === '' ? prompt.user : `${prompt.user}\n${reaskText(missing, scoresOf(scores), faults)}`;
    const answer = await askOnce(judge, { ...prompt, user }, missing, options, health);
    const found = readAnswer(answer, missing, prompt.ids, scores, health);
    add(problems, found);
    health.countProblems(found);
    if (scores.size === prompt.ids.length) return scores;
    const isRetry = 'fault' in answer && answer.isRetryable;
    const isFinal = 'fault' in answer && answer.fault === 'http_error' && !isRetry;
    if (isFinal || (isRetry ? retries >= options.maxRetries : reasks >= options.maxReasks)) {
      throw failure(judge, prompt.ids, scores, problems, answer, { reasks, retries });
    }
    if (isRetry) {
      await pause(pauseBefore(answer.error, retries, options), options.signal);
      retries++;
      health.count('retries');
    } else {
      reasks++;
      health.count('reasks');
      faults = describe(found);
    }
  }
}

async function askOnce(
  judge: Judge,
  { system, user }: RulerPrompt,
  missing: readonly string[],
  options: RoundOptions,
  health: JudgeHealth,
): Promise<Answer> {
  const { temperature, maxTokens, extraBody, hasExplanations, timeoutMs, signal, debug } = options;
  if (signal?.aborted) throw new AbortedError(`judge ${judge.name}: aborted by the caller`, { cause: signal.reason });
  const schema = answerSchema(missing, hasExplanations);
  const startedAt = performance.now();
  debug(`judge ${judge.name} is asked:\n${system}\n\n${user}`);
  try {
    const reply = await judge.ask({ system, user, schema, temperature, maxTokens, extraBody }, { timeoutMs, signal });
    if (reply.usage !== null) health.countUsage(reply.usage, judge.prices);
    debug(`judge ${judge.name} answers:\n${reply.text}`);
    return { reply };
  } catch (error) {
    debug(`judge ${judge.name} fails: ${messageOf(error)}`);
    if (error instanceof AbortedError && error.details.isDeadline === true) {
      return { fault: 'timeout', error, isRetryable: false };
    }
    if (error instanceof DataError) {
      const fault = error.details.problem === 'repeated_id' ? 'repeated_id' : 'invalid_json';
      return { fault, error, isRetryable: false };
    }
    if (!(error instanceof ApiError)) throw error;
    const isRetryable = [0, 408, 409, 425, 429].includes(error.status) || error.status >= 500;
    return { fault: 'http_error', error, isRetryable };
  } finally {
    health.countCall(performance.now() - startedAt);
  }
}

/** Adds the scores of an answer to `scores` and returns what was wrong with it. */
function readAnswer(
  answer: Answer,
  missing: readonly string[],
  known: readonly string[],
  scores: Map<string, JudgeScore>,
  health: JudgeHealth,
): ProblemCounts {
  if ('fault' in answer) return { [answer.fault]: 1 };
  const { text, isRefusal, isTruncated } = answer.reply;
  if (isRefusal) return { refusal: 1 };
  const read = readReply(text, missing, known);
  for (const [id, score] of read.scores) scores.set(id, score);
  health.count('coercedScores', read.coerced);
  return isTruncated && read.scores.size < missing.length ? { ...read.problems, truncated: 1 } : read.problems;
}

function pauseBefore(error: unknown, retries: number, { retryDelayMs }: RoundOptions): number {
  const asked = error instanceof ApiError ? Number(error.details.retryAfter ?? 0) * 1000 : 0;
  const wanted = Math.max(Number.isFinite(asked) ? asked : 0, retryDelayMs * 2 ** retries);
  return Math.min(MAX_PAUSE_MS, wanted);
}

function failure(
  judge: Judge,
  ids: readonly string[],
  scores: ReadonlyMap<string, JudgeScore>,
  problems: ProblemCounts,
  answer: Answer,
  counts: { readonly reasks: number; readonly retries: number },
): JudgeError {
  const missing = ids.filter((id) => !scores.has(id));
  const cause = 'fault' in answer ? answer.error : undefined;
  return new JudgeError(
    `judge ${judge.name}: must score ${ids.length} trajectories, got ${scores.size} after ${counts.reasks} re-asks and ${counts.retries} retries; ${describe(problems)}${cause === undefined ? '' : `; last: ${messageOf(cause)}`}`,
    { cause, details: { judge: judge.name, missing: missing.map(nameOf), problems, ...counts } },
  );
}

function scoresOf(scores: ReadonlyMap<string, JudgeScore>): Map<string, number> {
  return new Map([...scores].map(([id, { score }]) => [id, score]));
}

function add(sum: ProblemCounts, more: ProblemCounts): void {
  for (const [kind, count] of Object.entries(more) as [JudgeProblem, number][]) sum[kind] = (sum[kind] ?? 0) + count;
}

const texts: Readonly<Record<JudgeProblem, string>> = {
  invalid_json: 'it was not one JSON object',
  repeated_id: 'a trajectory was named twice',
  unknown_id: 'it named a trajectory that does not exist',
  unasked_id: 'it named a trajectory that was not asked for',
  missing_id: 'scores were missing',
  not_a_number: 'a score was not a number',
  out_of_range: 'a score was not between 0 and 1',
  shifted_ids: 'trajectories were counted from 0',
  empty: 'it was empty',
  truncated: 'it was too long',
  refusal: 'it was a refusal',
  timeout: 'it took too long',
  http_error: 'the request failed',
};

function describe(problems: ProblemCounts): string {
  return (Object.keys(problems) as JudgeProblem[]).map((kind) => texts[kind]).join(', ');
}
