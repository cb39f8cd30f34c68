/**
 * A pass over one new token of each sequence. Layer 3.
 * The graph only reads the slabs, in which the new token's row is still zero; what that row would add comes beside it, with the bits of
 * attention over all keys:
 * - its score is added to the zero that the empty row gives;
 * - the sum over values ends with it, since later keys have probability 0, and a product [I | p] × [sum so far; v] appends that last
 *   term by the very multiply-add that the sum would use.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { attentionBlock, maskedScore, minProductRows } from '../graph/bit-exact.ts';
import {
  add,
  addAlongLast,
  concat,
  type Graph,
  input,
  makeGraph,
  matmul,
  reshape,
  slice,
  softmax,
  type Tensor,
  takeAlongLast,
} from '../graph/builder.ts';
import { type Executable, type Feeds, type HostTensor, hostIds, hostTensor } from '../graph/runtime.ts';
import { firstVisibleKey, layerKinds, maskNames } from '../nn/attention-masks.ts';
import {
  type AttentionTensors,
  attentionScale,
  declareDecoder,
  declareInputs,
  decoderLogprobs,
  embedTokens,
  finishLayer,
  layerMask,
  projectAttention,
} from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import { type Cached, DecodeSlabs } from './decode-slabs.ts';
import type { KvCache } from './kv-cache.ts';
import {
  paddedRows,
  type RowRequest,
  type RowResult,
  readRows,
  rowFeeds,
  rowFetches,
  rowOutputs,
} from './row-choice.ts';

/** The next token of a sequence, whose place is after those that are cached. */
export interface DecodeEntry extends Cached {
  readonly tokenId: number;
  readonly row: RowRequest;
}

/** Longest sequence that a decode pass serves, its new token included: the sum over keys runs in one block up to there. */
export function longestDecode(config: DecoderConfig): number {
  // Beyond 128 channels a score has two parts, and the sum of two scaled parts is exact for powers of 2 alone.
  const isExact = config.headSize <= 128 || Number.isInteger(Math.log2(attentionScale(config)));
  return isExact ? attentionBlock(config.headSize) : 0;
}

/** B sequences, S keys. Ids from `vocabSize` on are never drawn. */
export function decodeGraph(config: DecoderConfig, lora: LoraSpec | null, vocabSize: number): Graph {
  const model = declareDecoder(config, lora);
  const { kvHeads, headSize } = config;
  const queryRows = Math.max(minProductRows, config.heads / kvHeads);
  const inputs = {
    ...declareInputs(config, 'S'),
    tokenIds: input('tokenIds', ['B', 1], 'int64'),
    positions: input('positions', ['B', 1], 'int64'),
    mask: input(maskNames.full, ['B', 1, 1, 'S']),
    slidingMask: input(maskNames.sliding, ['B', 1, 1, 'S']),
  };
  const newKey = input('newKey', ['B', kvHeads, queryRows, 1], 'int64');
  const identity = input('identity', ['B', kvHeads, queryRows, queryRows]);
  const fresh: Tensor[] = [];
  let x = embedTokens(model, inputs.tokenIds);
  for (let layer = 0; layer < config.layers; layer++) {
    const parts = projectAttention(model, layer, x, inputs);
    fresh.push(...[parts.keys, parts.values].map((part) => reshape(part, [1, 'B', kvHeads * headSize])));
    const slab = (name: string): Tensor => input(`${name}.${layer}`, ['B', kvHeads, 'S', headSize]);
    const mask = layerMask(config, layer, inputs);
    const mixed = attendNew(config, parts, { keys: slab('keys'), values: slab('values'), mask, newKey, identity });
    x = finishLayer(model, layer, x, mixed);
  }
  const logprobs = decoderLogprobs(
    model,
    x,
    input('logitRows', ['M'], 'int64'),
    input('inverseTemperatures', ['M', 1]),
  );
  return makeGraph({ ...rowOutputs(logprobs, vocabSize), fresh: concat(fresh, 0) });
}

interface SlabTensors {
  readonly keys: Tensor; // [B, K, S, C]
  readonly values: Tensor; // [B, K, S, C]
  readonly mask: Tensor; // [B, 1, 1, S]
  readonly newKey: Tensor; // int64 [B, K, G, 1]
  readonly identity: Tensor; // [B, K, G, G]
}

/** Attention of one new token over the slabs and itself: [B, K, G, C]. */
function attendNew(config: DecoderConfig, { queries, keys, values }: AttentionTensors, slabs: SlabTensors): Tensor {
  const { heads, kvHeads, headSize } = config;
  const queriesPerKey = heads / kvHeads;
  const alone = reshape(queries, ['B', kvHeads, queriesPerKey, headSize]);
  const grouped = queriesPerKey < minProductRows ? concat([alone, alone], 2) : alone;
  const score = (q: Tensor, k: Tensor): Tensor => matmul(q, k, { transB: true, alpha: attentionScale(config) });
  let newScore = headSize <= 128 ? score(grouped, keys) : score(slice(grouped, 3, 0, 128), slice(keys, 3, 0, 128));
  for (let at = 128; at < headSize; at += 128) {
    const end = Math.min(headSize, at + 128);
    newScore = add(newScore, score(slice(grouped, 3, at, end), slice(keys, 3, at, end)));
  }
  const scores = addAlongLast(score(grouped, slabs.keys), slabs.newKey, newScore);
  const probabilities = softmax(add(scores, slabs.mask));
  const before = matmul(probabilities, slabs.values);
  const last = takeAlongLast(probabilities, slabs.newKey);
  const mixed = matmul(concat([slabs.identity, last], 3), concat([before, values], 2));
  return queriesPerKey < minProductRows ? slice(mixed, 2, 0, queriesPerKey) : mixed;
}

/** Not reentrant: a pass must end before the next begins. */
export class DecodePass {
  readonly #config: DecoderConfig;
  readonly #slabs: DecodeSlabs;
  readonly #executable: Executable;
  /** Fed with every pass. */
  readonly #fixed: Feeds;
  readonly #vocabSize: number;
  #identity: HostTensor = hostTensor(new Float32Array(0), [0]);

  constructor(config: DecoderConfig, cache: KvCache, executable: Executable, fixed: Feeds, vocabSize: number) {
    this.#config = config;
    this.#slabs = new DecodeSlabs(config, cache);
    this.#executable = executable;
    this.#fixed = fixed;
    this.#vocabSize = vocabSize;
  }

  /** Runs all entries in one pass, writes their keys and values into the cache, and returns their rows in order. */
  async run(entries: readonly DecodeEntry[], policy: Feeds): Promise<RowResult[]> {
    const byTable = new Map(entries.map((entry) => [entry.table, entry]));
    const inSlots = this.#slabs.hold(entries).map((table) => byTable.get(table)!);
    const requests = inSlots.map(({ row }) => row);
    const slabFeeds: Record<string, HostTensor> = {};
    for (const [i, tensor] of this.#slabs.tensors().entries()) {
      slabFeeds[`${i % 2 === 0 ? 'keys' : 'values'}.${i >> 1}`] = tensor;
    }
    const results = await this.#executable.run(
      { ...this.#fixed, ...policy, ...slabFeeds, ...this.#layOut(inSlots), ...rowFeeds(requests, this.#vocabSize) },
      ['fresh', ...rowFetches(requests)],
    );
    this.#slabs.append(results.fresh!.data as Float32Array);
    const rows = readRows(requests, results);
    const rowOf = new Map(inSlots.map(({ table }, slot) => [table, rows[slot]!]));
    return entries.map(({ table }) => rowOf.get(table)!);
  }

  #layOut(entries: readonly DecodeEntry[]): Feeds {
    const config = this.#config;
    const { batch, keyCount } = this.#slabs;
    const perSlot = config.kvHeads * Math.max(minProductRows, config.heads / config.kvHeads);
    const tokenIds = new BigInt64Array(batch);
    const positions = new BigInt64Array(batch);
    const newKey = new BigInt64Array(batch * perSlot);
    for (const [slot, { tokenId, length }] of entries.entries()) {
      const position = BigInt(length);
      tokenIds[slot] = BigInt(tokenId);
      positions[slot] = position;
      newKey.fill(position, slot * perSlot, (slot + 1) * perSlot);
    }
    const feeds: Record<string, HostTensor> = {
      tokenIds: { dtype: 'int64', shape: [batch, 1], data: tokenIds },
      positions: { dtype: 'int64', shape: [batch, 1], data: positions },
      newKey: { dtype: 'int64', shape: [batch, config.kvHeads, perSlot / config.kvHeads, 1], data: newKey },
      identity: this.#identityOf(batch),
      logitRows: hostIds(Array.from({ length: paddedRows(entries.length) }, (_, row) => row)),
    };
    for (const kind of layerKinds(config)) {
      const data = new Float32Array(batch * keyCount).fill(maskedScore);
      for (let slot = 0; slot < batch; slot++) {
        const length = entries[slot]?.length ?? 0;
        data.fill(0, slot * keyCount + firstVisibleKey(config, kind, length), slot * keyCount + length + 1);
      }
      feeds[maskNames[kind]] = hostTensor(data, [batch, 1, 1, keyCount]);
    }
    return feeds;
  }

  /** [B, K, G, G] */
  #identityOf(batch: number): HostTensor {
    if (this.#identity.shape[0] === batch) return this.#identity;
    const { heads, kvHeads } = this.#config;
    const size = Math.max(minProductRows, heads / kvHeads);
    const data = Float32Array.from({ length: batch * kvHeads * size * size }, (_, i) =>
      Number(Math.floor(i / size) % size === i % size),
    );
    this.#identity = hostTensor(data, [batch, kvHeads, size, size]);
    return this.#identity;
  }
}
