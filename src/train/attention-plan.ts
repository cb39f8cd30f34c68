/**
 * Cuts the attention of a token list into jobs: queries of one piece of a run, and the keys of its sequence up to the last of them.
 * Layer 3. Pieces bound the memory that scores take and leave out keys that a causal mask would hide, so that the cost of long
 * sequences is half their square. Keys stand at their own index in their sequence, as `graph/bit-exact.ts` wants it.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { attentionAlignment, maskedScore } from '../graph/bit-exact.ts';
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import { firstVisibleKey, type LayerKind, layerKinds } from '../nn/attention-masks.ts';
import type { Run, Span, TokenLayout } from './token-layout.ts';

/** Scores of one job, float32 values: 32 MB. */
const MAX_SCORES = 8 * 1024 * 1024;
/** Queries of a piece. For each piece the keys before it are copied; pieces of 64 to 256 take the same time. */
const PIECE_LENGTH = 128;
/** Pieces with as many padded keys run as one job. */
const KEY_PADDING = 64;

interface Piece {
  readonly queries: Span;
  readonly position: number;
  readonly keys: readonly Span[];
}

/** Pieces of equal padded sizes, batched. */
export interface AttentionJob {
  readonly pieces: readonly Piece[];
  readonly time: number;
  readonly keyCount: number;
  /** [B, 1, G*T, S] for each kind of layer. */
  readonly masks: ReadonlyMap<LayerKind, HostTensor>;
}

/** Jobs that together hold every query of the layout once. */
export function planAttention(layout: TokenLayout, config: DecoderConfig): AttentionJob[] {
  const bySize = new Map<string, Piece[]>();
  for (const piece of layout.runs.flatMap(cutRun)) {
    const key = `${paddedQueries(piece)} ${paddedKeys(piece)}`;
    const pieces = bySize.get(key);
    if (pieces) pieces.push(piece);
    else bySize.set(key, [piece]);
  }
  const jobs: AttentionJob[] = [];
  for (const pieces of bySize.values()) {
    const time = paddedQueries(pieces[0]!);
    const keyCount = paddedKeys(pieces[0]!);
    const batch = Math.max(1, Math.floor(MAX_SCORES / (config.heads * time * keyCount)));
    for (let start = 0; start < pieces.length; start += batch) {
      const some = pieces.slice(start, start + batch);
      jobs.push({ pieces: some, time, keyCount, masks: createMasks(some, time, keyCount, config) });
    }
  }
  return jobs;
}

function cutRun({ row, count, position, prefix }: Run): Piece[] {
  const pieces: Piece[] = [];
  for (let start = 0; start < count; start += PIECE_LENGTH) {
    const size = Math.min(PIECE_LENGTH, count - start);
    pieces.push({
      queries: { row: row + start, count: size },
      position: position + start,
      keys: [...prefix, { row, count: start + size }],
    });
  }
  return pieces;
}

const roundUp = (value: number, to: number): number => Math.ceil(value / to) * to;
const paddedQueries = ({ queries }: Piece): number => roundUp(queries.count, attentionAlignment);
const paddedKeys = ({ queries, position }: Piece): number => roundUp(position + queries.count, KEY_PADDING);

/** Queries beyond the end of a piece see the first key, so that no row of the softmax is empty. */
function createMasks(
  pieces: readonly Piece[],
  time: number,
  keyCount: number,
  config: DecoderConfig,
): Map<LayerKind, HostTensor> {
  const groups = config.heads / config.kvHeads;
  const masks = new Map<LayerKind, HostTensor>();
  for (const kind of layerKinds(config)) {
    const data = new Float32Array(pieces.length * groups * time * keyCount).fill(maskedScore);
    for (const [b, { queries, position }] of pieces.entries()) {
      for (let g = 0; g < groups; g++) {
        for (let t = 0; t < time; t++) {
          const start = ((b * groups + g) * time + t) * keyCount;
          const isQuery = t < queries.count;
          const first = isQuery ? firstVisibleKey(config, kind, position + t) : 0;
          data.fill(0, start + first, start + (isQuery ? position + t : 0) + 1);
        }
      }
    }
    masks.set(kind, hostTensor(data, [pieces.length, 1, groups * time, keyCount]));
  }
  return masks;
}

/** Copies rows of `from` [A, N, C] to [B, A, length, C] in `into`, the spans of each piece from index 0; the rest stays. */
export function gatherSpans(
  from: Float32Array,
  sizes: { readonly rows: number; readonly heads: number; readonly headSize: number },
  spans: readonly (readonly Span[])[],
  length: number,
  into: Float32Array,
): void {
  forEachSpan(sizes, spans, length, (row, place, count) => into.set(from.subarray(row, row + count), place));
}

/** The way back: copies, or adds where rows are shared. */
export function scatterSpans(
  from: Float32Array,
  sizes: { readonly rows: number; readonly heads: number; readonly headSize: number },
  spans: readonly (readonly Span[])[],
  length: number,
  into: Float32Array,
  isAdding: boolean,
): void {
  forEachSpan(sizes, spans, length, (row, place, count) => {
    if (!isAdding) into.set(from.subarray(place, place + count), row);
    else for (let i = 0; i < count; i++) into[row + i]! += from[place + i]!;
  });
}

/** Calls with the first value of a span in [A, N, C], its place in [B, A, length, C], and its number of values. */
function forEachSpan(
  { rows, heads, headSize }: { readonly rows: number; readonly heads: number; readonly headSize: number },
  spans: readonly (readonly Span[])[],
  length: number,
  visit: (row: number, place: number, count: number) => void,
): void {
  for (const [b, ofPiece] of spans.entries()) {
    for (let head = 0; head < heads; head++) {
      let at = (b * heads + head) * length;
      for (const { row, count } of ofPiece) {
        visit((head * rows + row) * headSize, at * headSize, count * headSize);
        at += count;
      }
    }
  }
}
