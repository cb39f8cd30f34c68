/** Reward of tool calls against those that were expected. Layer 5. Arguments are compared as JSON values, ids not at all. */
import { canonicalJson } from '../core/json.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Trajectory } from '../core/trajectory.ts';
import { type FromScenario, resolveFrom, type SyncReward } from './reward.ts';

export interface ExpectedCall {
  readonly name: string;
  /** A JSON value; left out: any arguments will do. */
  readonly arguments?: unknown;
}

/**
 * F1 of the calls that were made against those expected: 2·matched / (made + expected), 1 if there are neither. A call is matched once.
 * `order: 'strict'` matches the longest common subsequence, so that calls in the wrong order do not count; default `any`.
 * Metrics `tool_call_precision` and `tool_call_recall`.
 */
export function toolCallAccuracy<Scenario = unknown>(
  expected: FromScenario<readonly ExpectedCall[], Scenario>,
  options: { readonly order?: 'any' | 'strict' } = {},
): SyncReward<Scenario> {
  refuseUnknownKeys('toolCallAccuracy', options, ['order']);
  const { order = 'any' } = options;
  return (trajectory, scenario) => {
    const wanted = resolveFrom(expected, scenario, trajectory);
    const made = madeCalls(trajectory);
    const matched = order === 'any' ? countMatched(made, wanted) : commonSubsequence(made, wanted);
    const total = made.length + wanted.length;
    return {
      reward: total === 0 ? 1 : (2 * matched) / total,
      metrics: {
        tool_call_precision: made.length === 0 ? 1 : matched / made.length,
        tool_call_recall: wanted.length === 0 ? 1 : matched / wanted.length,
      },
    };
  };
}

interface MadeCall {
  readonly name: string;
  /** Canonical JSON; null for arguments that are no JSON, which match nothing. */
  readonly arguments: string | null;
}

function madeCalls(trajectory: Trajectory): MadeCall[] {
  return trajectory.allChoices().flatMap(({ message }) =>
    (message.tool_calls ?? []).flatMap((call) => {
      const { function: made } = call as { readonly function?: { readonly name: string; readonly arguments: string } };
      return made === undefined ? [] : [{ name: made.name, arguments: canonicalArguments(made.arguments) }];
    }),
  );
}

function canonicalArguments(text: string): string | null {
  try {
    return canonicalJson(JSON.parse(text === '' ? '{}' : text));
  } catch {
    return null;
  }
}

function fits(made: MadeCall, wanted: ExpectedCall): boolean {
  if (made.name !== wanted.name || made.arguments === null) return false;
  return wanted.arguments === undefined || made.arguments === canonicalJson(wanted.arguments);
}

/** Calls with given arguments are matched first, so that one with any arguments does not take their match. */
function countMatched(made: readonly MadeCall[], wanted: readonly ExpectedCall[]): number {
  const left = [...made];
  const specificFirst = [...wanted].sort(
    (a, b) => Number(a.arguments === undefined) - Number(b.arguments === undefined),
  );
  return specificFirst.filter((call) => {
    const at = left.findIndex((candidate) => fits(candidate, call));
    if (at !== -1) left.splice(at, 1);
    return at !== -1;
  }).length;
}

function commonSubsequence(made: readonly MadeCall[], wanted: readonly ExpectedCall[]): number {
  let row: number[] = Array.from({ length: wanted.length + 1 }, () => 0);
  for (const call of made) {
    const next = [0];
    for (const [at, expected] of wanted.entries()) {
      const skipped = Math.max(row[at + 1] as number, next[at] as number);
      next.push(fits(call, expected) ? Math.max(skipped, (row[at] as number) + 1) : skipped);
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
