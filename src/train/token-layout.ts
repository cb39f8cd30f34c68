/**
 * Lays sequences out as one list of tokens without padding, in which a prefix that sequences share stands once. Layer 3.
 * Everything but attention works on single tokens, and attention puts the keys of a sequence together from its spans
 * (`attention-plan.ts`), each at its own index: so sharing changes no bit.
 */
import { commonPrefix } from '../core/common-prefix.ts';
import { minProductRows } from '../graph/bit-exact.ts';
import { type HostTensor, hostIds } from '../graph/runtime.ts';

/** Shorter common prefixes are computed again: a span of their own would cost more. */
const SHORTEST_SHARED = 16;

/** `count` rows of the list from `row`. */
export interface Span {
  readonly row: number;
  readonly count: number;
}

/** Tokens that are computed for the first time: they stand at `position` and after in their sequence, behind those of `prefix`. */
export interface Run extends Span {
  readonly position: number;
  readonly prefix: readonly Span[];
}

export interface TokenLayout {
  readonly tokenIds: HostTensor; // int64 [1, N]
  readonly positions: HostTensor; // int64 [1, N]
  readonly rows: number;
  readonly runs: readonly Run[];
  /** For each sequence the rows of its tokens, in order. */
  readonly spans: readonly (readonly Span[])[];
}

type Tokens = readonly number[];

/** Order in which the neighbour has the longest common prefix. */
export function compareTokens(a: Tokens, b: Tokens): number {
  const common = commonPrefix(a, b);
  if (common === Math.min(a.length, b.length)) return a.length - b.length;
  return a[common]! - b[common]!;
}

/** Tokens of `b` that need not be computed after `a`. */
export function sharedTokens(a: Tokens, b: Tokens): number {
  const common = commonPrefix(a, b);
  return common < SHORTEST_SHARED ? 0 : common;
}

/** `sequences` in the order of `compareTokens`, or any other order with less sharing. */
export function layOutTokens(sequences: readonly Tokens[], isSharing: boolean): TokenLayout {
  const ids: number[] = [];
  const positions: number[] = [];
  const runs: Run[] = [];
  const spans: (readonly Span[])[] = [];
  for (const [i, tokens] of sequences.entries()) {
    const before = sequences[i - 1];
    const shared = isSharing && before ? sharedTokens(before, tokens) : 0;
    const prefix = shared === 0 ? [] : firstRows(spans[i - 1]!, shared);
    const own = { row: ids.length, count: tokens.length - shared };
    for (let t = shared; t < tokens.length; t++) {
      ids.push(tokens[t]!);
      positions.push(t);
    }
    if (own.count > 0) runs.push({ ...own, position: shared, prefix });
    spans.push(own.count > 0 ? [...prefix, own] : prefix);
  }
  while (ids.length < minProductRows) {
    runs.push({ row: ids.length, count: 1, position: 0, prefix: [] });
    ids.push(0);
    positions.push(0);
  }
  const shape = [1, ids.length];
  return { tokenIds: hostIds(ids, shape), positions: hostIds(positions, shape), rows: ids.length, runs, spans };
}

/** The spans of the first `count` tokens. */
function firstRows(spans: readonly Span[], count: number): Span[] {
  const result: Span[] = [];
  let left = count;
  for (const span of spans) {
    if (left === 0) break;
    const taken = Math.min(left, span.count);
    result.push({ row: span.row, count: taken });
    left -= taken;
  }
  return result;
}

/** The row of token `position` of a sequence. */
export function rowOf(spans: readonly Span[], position: number): number {
  let left = position;
  for (const { row, count } of spans) {
    if (left < count) return row + left;
    left -= count;
  }
  return -1;
}
