/**
 * The end of a sampling pass: rows of log-probabilities, and in the same graph one token drawn from each. Layer 3.
 * A draw needs no full row in JavaScript: probabilities are summed over chunks of 64 ids, one number chooses the chunk and one the id
 * in it, each by its cumulative sum. The logprob of the drawn token is the row's own value: exactly what the trainer computes again.
 * What restricts the draw or shifts it (greedy, top-k, top-p, min-p, penalties, bias, a constraint) reads the full row instead (`sampler.ts`).
 */
import { minProductRows } from '../graph/bit-exact.ts';
import {
  add,
  constant,
  exp,
  gatherRows,
  input,
  lessOrEqual,
  logSoftmax,
  matmul,
  mul,
  pad,
  reduceSum,
  reshape,
  slice,
  type Tensor,
  takeAlongLast,
  toIds,
  where,
} from '../graph/builder.ts';
import { type Feeds, type HostTensor, hostIds, hostTensor } from '../graph/runtime.ts';
import { multiplyDims } from '../graph/sizes.ts';

/** Ids whose probabilities are summed before one of them is looked at. */
const CHUNK = 64;
/** Largest float32 below 1: a larger draw could lie beyond the cumulative sum. */
const LARGEST_DRAW = 1 - 2 ** -24;

/** What is wanted of one row. */
export interface RowRequest {
  readonly inverseTemperature: number;
  /** Uniform in [0, 1): draws `tokenId`. */
  readonly draw: number;
  /** Whose logprob is wanted. */
  readonly targetId: number;
  readonly wantsRow: boolean;
}

export interface RowResult {
  /** The drawn token and its logprob. */
  readonly tokenId: number;
  readonly logprob: number;
  readonly targetLogprob: number;
  /** [V], a view; null unless wanted. */
  readonly logprobs_V: Float32Array | null;
  /** What the scaled logits of the row are above its logprobs; NaN unless the row is wanted. */
  readonly logNormalizer: number;
}

/** Ids from `vocabSize` on are never drawn. `logits` [M, V] are at the temperatures. */
export function rowOutputs(logits: Tensor, vocabSize: number): Record<string, Tensor> {
  const logprobs = logSoftmax(logits);
  const targetIds = input('targetIds', ['M', 1], 'int64');
  const draws = input('draws', ['M', 2]);
  const chunkCount = Math.ceil(vocabSize / CHUNK);
  const known = exp(logprobs.shape[1] === vocabSize ? logprobs : slice(logprobs, 1, 0, vocabSize));
  const padded = vocabSize === chunkCount * CHUNK ? known : pad(known, 1, 0, chunkCount * CHUNK);
  const chunks = reshape(padded, [multiplyDims(['M', chunkCount]), CHUNK]);
  const sums = reshape(reduceSum(chunks, [-1]), ['M', chunkCount]);
  const chunk = drawIndex(sums, slice(draws, 1, 0, 1));
  const inChunk = drawIndex(
    gatherRows(chunks, add(chunk, input('chunkOffsets', ['M'], 'int64'))),
    slice(draws, 1, 1, 2),
  );
  const tokenIds = reshape(add(mul(chunk, constant(CHUNK, [], 'int64')), inChunk), ['M', 1]);
  return {
    logprobs,
    tokenIds,
    drawnLogprobs: takeAlongLast(logprobs, tokenIds),
    targetLogprobs: takeAlongLast(logprobs, targetIds),
    targetLogits: takeAlongLast(logits, targetIds),
  };
}

/**
 * Index drawn from each row of weights [M, N], as int64 [M]: how many of the cumulative sums are not above draw · total. A weight of 0
 * never rises the sum, so it is never drawn; draws [M, 1] are below 1, so the last sum is above.
 */
function drawIndex(weights: Tensor, draws: Tensor): Tensor {
  const count = weights.shape[1] as number;
  const ones = Float64Array.from({ length: count * count }, (_, i) => Number(Math.floor(i / count) <= i % count));
  const cumulative = matmul(weights, constant(ones, [count, count]));
  const target = mul(slice(cumulative, 1, count - 1, count), draws);
  return toIds(reduceSum(where(lessOrEqual(cumulative, target), constant(1), constant(0)), [-1]));
}

/** Rows of the graph for these requests: products need two. */
export const paddedRows = (count: number): number => Math.max(minProductRows, count);

/** What `rowOutputs` reads, and the rows' inverse temperatures. */
export function rowFeeds(requests: readonly RowRequest[], vocabSize: number): Feeds {
  const count = paddedRows(requests.length);
  const draws = new Float32Array(count * 2);
  const inverseTemperatures = new Float32Array(count).fill(1);
  const targetIds = new BigInt64Array(count);
  for (const [row, { inverseTemperature, draw, targetId }] of requests.entries()) {
    // Two numbers of 24 bits each from the 53 of one.
    const high = Math.floor(draw * 2 ** 24);
    draws[row * 2] = Math.min(LARGEST_DRAW, high / 2 ** 24);
    draws[row * 2 + 1] = Math.min(LARGEST_DRAW, draw * 2 ** 24 - high);
    inverseTemperatures[row] = inverseTemperature;
    targetIds[row] = BigInt(targetId);
  }
  const chunkCount = Math.ceil(vocabSize / CHUNK);
  return {
    draws: hostTensor(draws, [count, 2]),
    inverseTemperatures: hostTensor(inverseTemperatures, [count, 1]),
    targetIds: { dtype: 'int64', shape: [count, 1], data: targetIds },
    chunkOffsets: hostIds(Array.from({ length: count }, (_, row) => row * chunkCount)),
  };
}

/** The outputs that must be fetched: full rows are large. */
export function rowFetches(requests: readonly RowRequest[]): string[] {
  const small = ['tokenIds', 'drawnLogprobs', 'targetLogprobs'];
  return requests.some(({ wantsRow }) => wantsRow) ? [...small, 'logprobs', 'targetLogits'] : small;
}

export function readRows(requests: readonly RowRequest[], results: Readonly<Record<string, HostTensor>>): RowResult[] {
  const tokenIds = results.tokenIds!.data as BigInt64Array;
  const drawn = results.drawnLogprobs!.data as Float32Array;
  const targets = results.targetLogprobs!.data as Float32Array;
  const rows = results.logprobs?.data as Float32Array | undefined;
  const logits = results.targetLogits?.data as Float32Array | undefined;
  const width = results.logprobs?.shape[1] ?? 0;
  return requests.map(({ wantsRow }, row) => ({
    tokenId: Number(tokenIds[row]),
    logprob: drawn[row]!,
    targetLogprob: targets[row]!,
    logprobs_V: wantsRow ? rows!.subarray(row * width, (row + 1) * width) : null,
    logNormalizer: wantsRow ? logits![row]! - targets[row]! : Number.NaN,
  }));
}
