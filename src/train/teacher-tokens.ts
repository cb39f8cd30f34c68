/** What a teacher says of each place, as the losses on top-k read it: [M, K]. Layer 3. */
import { DataError } from '../core/errors.ts';
import type { HostTensor } from '../graph/runtime.ts';

/** A teacher's best tokens in place of each token, of length T: as many for each action token as for any other, none elsewhere. */
export interface TeacherTokens {
  readonly tokenIds: readonly (readonly number[])[];
  readonly logprobs: readonly (readonly number[])[];
}

export const teacherColumns = ['teacherIds', 'teacherLogprobs'] as const;

export function isTeacherColumn(name: string): boolean {
  return (teacherColumns as readonly string[]).includes(name);
}

/** Logprob of rows without a place: of probability 0, and finite, because it is multiplied by a weight of 0. */
const padding = -1e4;

/** Throws DataError on arrays of unequal length, ids outside the vocabulary or twice in a place, logprobs that are not of probabilities. */
export function checkTeacher(
  { tokenIds, logprobs }: TeacherTokens,
  { actionMask }: { readonly actionMask: readonly number[] },
  index: number,
  vocabSize: number,
): void {
  const fail = (rule: string, got: unknown): never => {
    throw new DataError(`datum ${index}: teacher ${rule}, got ${got}`);
  };
  const length = actionMask.length;
  if (tokenIds.length !== length || logprobs.length !== length) {
    fail(`must have one entry per token (${length})`, `${tokenIds.length} and ${logprobs.length}`);
  }
  const count = tokenIds[actionMask.indexOf(1)]?.length ?? 0;
  for (const [t, mask] of actionMask.entries()) {
    if (mask !== 1) continue;
    const [ids, values] = [tokenIds[t]!, logprobs[t]!];
    if (ids.length !== count || values.length !== count || count === 0) {
      fail(
        'must have equally many tokens at each place, at least one',
        `${ids.length} ids, ${values.length} logprobs at ${t}`,
      );
    }
    const wrongId = ids.find((id) => !Number.isSafeInteger(id) || id < 0 || id >= vocabSize);
    if (wrongId !== undefined) fail(`token ids must be below ${vocabSize}`, `${wrongId} at ${t}`);
    if (new Set(ids).size !== count) fail('tokens of a place must differ', `${ids.join(', ')} at ${t}`);
    const wrong = values.find((value) => !Number.isFinite(value) || value > 1e-6);
    if (wrong !== undefined) fail('logprobs must be finite and at most 0', `${wrong} at ${t}`);
  }
}

/** [count, K] each; nothing where a sequence has no teacher. Throws DataError if places have different numbers of tokens. */
export function teacherFeeds(
  sequences: readonly { readonly teacher?: TeacherTokens }[],
  places: readonly { readonly index: number; readonly position: number }[],
  count: number,
): Record<string, HostTensor> {
  const rows = places.map(({ index, position }) => {
    const { teacher } = sequences[index]!;
    return teacher && { ids: teacher.tokenIds[position]!, logprobs: teacher.logprobs[position]! };
  });
  const size = rows[0]?.ids.length;
  if (size === undefined || rows.some((row) => row === undefined)) return {};
  const teacherIds = new BigInt64Array(count * size);
  const teacherLogprobs = new Float32Array(count * size).fill(padding);
  for (const [i, row] of rows.entries()) {
    const { ids, logprobs } = row!;
    if (ids.length !== size) {
      throw new DataError(`teacher: must have equally many tokens at each place, got ${size} and ${ids.length}`);
    }
    teacherIds.set(ids.map(BigInt), i * size);
    teacherLogprobs.set(logprobs, i * size);
  }
  return {
    teacherIds: { dtype: 'int64', shape: [count, size], data: teacherIds },
    teacherLogprobs: { dtype: 'float32', shape: [count, size], data: teacherLogprobs },
  };
}
