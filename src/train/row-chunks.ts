/**
 * Rows of a token list that run through a layer together: what a part takes in memory beside its inputs does not grow with the list.
 * Layer 3.
 */
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import { gatherSpans, scatterSpans } from './attention-plan.ts';
import type { Span, TokenLayout } from './token-layout.ts';

/** Products of more rows are no faster. */
export const MAX_CHUNK_ROWS = 1024;

export interface RowChunk {
  readonly span: Span;
  readonly tokenIds: HostTensor;
  readonly positions: HostTensor;
}

/** As few chunks as possible, of equal size: each has the two rows at least that bits need. */
export function cutRows({ rows, tokenIds, positions }: TokenLayout): RowChunk[] {
  const count = Math.ceil(rows / MAX_CHUNK_ROWS);
  const size = Math.ceil(rows / count);
  const cut = ({ data }: HostTensor, span: Span): HostTensor => {
    const ids = (data as BigInt64Array).subarray(span.row, span.row + span.count);
    return { dtype: 'int64', shape: [1, span.count], data: ids };
  };
  return Array.from({ length: count }, (_, i) => {
    const span = { row: i * size, count: Math.min(size, rows - i * size) };
    return { span, tokenIds: cut(tokenIds, span), positions: cut(positions, span) };
  });
}

/** A view of rows of [N, D]. */
export function rowsOf({ data, shape }: HostTensor, { row, count }: Span): HostTensor {
  const width = shape[1]!;
  const view = (data as Float32Array).subarray(row * width, (row + count) * width);
  return hostTensor(view, [count, width]);
}

export function headShape({ shape }: HostTensor, { count }: Span): readonly number[] {
  return [1, shape[1]!, count, shape[3]!];
}

function sizesOf({ shape }: HostTensor): { rows: number; heads: number; headSize: number } {
  return { rows: shape[2]!, heads: shape[1]!, headSize: shape[3]! };
}

/** Rows of [1, A, N, C] as [1, A, n, C]. */
export function headsOf(whole: HostTensor, span: Span): HostTensor {
  if (span.count === whole.shape[2]) return whole;
  const part = new Float32Array(whole.shape[1]! * span.count * whole.shape[3]!);
  gatherSpans(whole.data as Float32Array, sizesOf(whole), [[span]], span.count, part);
  return hostTensor(part, headShape(whole, span));
}

/** The way back, into `whole`. */
export function putHeads(part: HostTensor, whole: HostTensor, span: Span): void {
  scatterSpans(part.data as Float32Array, sizesOf(whole), [[span]], span.count, whole.data as Float32Array, false);
}
