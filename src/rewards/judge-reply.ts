/**
 * Scores out of whatever a judge wrote. Layer 5. Pure functions.
 * A score is taken only where its meaning is certain; all else is a counted problem, and its trajectory stays without score.
 */
import { hasRepeatedName } from './json.ts';

/** What went wrong in a call, by kind. */
export const judgeProblems = [
  'invalid_json',
  'repeated_id',
  'unknown_id',
  'unasked_id',
  'missing_id',
  'not_a_number',
  'out_of_range',
  'shifted_ids',
  'empty',
  'truncated',
  'refusal',
  'timeout',
  'http_error',
] as const;
export type JudgeProblem = (typeof judgeProblems)[number];
export type ProblemCounts = Partial<Record<JudgeProblem, number>>;

export interface JudgeScore {
  readonly score: number;
  readonly explanation: string;
}

export interface ReadReply {
  readonly scores: ReadonlyMap<string, JudgeScore>;
  readonly problems: ProblemCounts;
  /** Scores that were text, as in "0.7". */
  readonly coerced: number;
}

/** Longest answer that is read: an answer for a hundred trajectories has some 50,000 characters. */
const MAX_CHARACTERS = 1_000_000;

/**
 * Scores for the trajectories of `asked`; `known` are all ids that were shown. An answer with one score off the scale, or that counts from
 * 0, is not used at all: its other numbers would be on another scale or of other trajectories.
 */
export function readReply(text: string, asked: readonly string[], known: readonly string[]): ReadReply {
  const problems: ProblemCounts = {};
  const count = (kind: JudgeProblem): void => {
    problems[kind] = (problems[kind] ?? 0) + 1;
  };
  const nothing: ReadReply = { scores: new Map(), problems, coerced: 0 };
  if (text.trim() === '') {
    count('empty');
    return nothing;
  }
  const parsed = findJson(text);
  if (parsed === null) {
    count('invalid_json');
    return nothing;
  }
  if (hasRepeatedName(parsed.text)) {
    count('repeated_id');
    return nothing;
  }
  const scores = new Map<string, JudgeScore>();
  const seen = new Set<string>();
  let coerced = 0;
  for (const [idText, value] of entriesOf(parsed.value)) {
    const id = readId(idText);
    if (id === '0') {
      count('shifted_ids');
      return nothing;
    }
    if (id === null || !known.includes(id)) {
      count('unknown_id');
      continue;
    }
    const score = readScore(value);
    if (score !== null && (score.value < 0 || score.value > 1)) {
      count('out_of_range');
      return nothing;
    }
    if (!asked.includes(id)) {
      count('unasked_id');
    } else if (seen.has(id)) {
      if (scores.delete(id) || score !== null) count('repeated_id');
    } else if (score === null) {
      count('not_a_number');
    } else {
      scores.set(id, { score: score.value, explanation: readExplanation(value) });
      if (score.isText) coerced++;
    }
    seen.add(id);
  }
  for (const id of asked) if (!seen.has(id)) count('missing_id');
  return { scores, problems, coerced };
}

/** The one JSON value in a text: alone, after reasoning, in a fence, or between words. Null if there is none, or more than one. */
export function findJson(reply: string): { readonly text: string; readonly value: unknown } | null {
  if (reply.length > MAX_CHARACTERS) return null;
  const afterReasoning = reply.slice(reply.lastIndexOf('</think>') + 1).replace(/^\/think>/, '');
  const [fenced, second] = Array.from(afterReasoning.matchAll(/```(?:\w+)?\s*\n(.*?)```/gs), ([, inside]) => inside);
  const first = afterReasoning.search(/[{[]/);
  const last = Math.max(afterReasoning.lastIndexOf('}'), afterReasoning.lastIndexOf(']'));
  const candidates = [reply, afterReasoning];
  if (fenced !== undefined && second === undefined) candidates.push(fenced);
  if (fenced === undefined && first !== -1) candidates.push(afterReasoning.slice(first, last + 1));
  for (const text of candidates) {
    try {
      const value: unknown = JSON.parse(text);
      if (typeof value === 'object' && value !== null) return { text, value };
    } catch {
      // The next candidate may be JSON.
    }
  }
  return null;
}

/** Pairs of id and value, from the form that was asked for or from the lists that judges without a schema write. */
function entriesOf(value: unknown): (readonly [unknown, unknown])[] {
  if (Array.isArray(value)) return value.map((item) => [idOf(item), item]);
  if (typeof value !== 'object' || value === null) return [];
  if ('scores' in value && typeof value.scores === 'object') return entriesOf(value.scores);
  if (idOf(value) !== undefined) return [[idOf(value), value]];
  return Object.entries(value);
}

function idOf(item: unknown): unknown {
  if (typeof item !== 'object' || item === null) return undefined;
  const { trajectory_id, trajectoryId, id } = item as Record<string, unknown>;
  return trajectory_id ?? trajectoryId ?? id;
}

function readId(id: unknown): string | null {
  if (typeof id !== 'string' && typeof id !== 'number') return null;
  return /^\s*(?:trajectory[\s_-]*)?(\d{1,9})\s*$/i.exec(String(id))?.[1] ?? null;
}

function readScore(value: unknown): { readonly value: number; readonly isText: boolean } | null {
  const score =
    typeof value === 'object' && value !== null && 'score' in value ? (value as { score: unknown }).score : value;
  if (typeof score === 'number') return Number.isFinite(score) ? { value: score, isText: false } : null;
  if (typeof score !== 'string' || !/^\s*[-+]?(?:\d+\.?\d*|\.\d+)\s*$/.test(score)) return null;
  return { value: Number(score), isText: true };
}

function readExplanation(value: unknown): string {
  const explanation = typeof value === 'object' && value !== null && 'explanation' in value ? value.explanation : '';
  return typeof explanation === 'string' ? explanation : '';
}
