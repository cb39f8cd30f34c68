/**
 * A pass over several new tokens of each sequence. Layer 3.
 * The graph reads what is cached of the sequences as [B, K, S, C], puts the new keys and values in, each at its own index, and returns the
 * new ones, which are then written into the cache. Nothing is gathered in the graph: JavaScript lays the cached tokens out.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { maskedScore, minKeys, minProductRows } from '../graph/bit-exact.ts';
import { type Graph, input, makeGraph, reshape, reshapeLike, scatterRows, type Tensor } from '../graph/builder.ts';
import { type Executable, type Feeds, type HostTensor, hostIds, hostTensor } from '../graph/runtime.ts';
import { multiplyDims } from '../graph/sizes.ts';
import { firstVisibleKey, layerKinds, maskNames } from '../nn/attention-masks.ts';
import { declareDecoder, declareInputs, decoderHidden, type KeyValueRoute, scaledLogits } from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import type { BlockTable, KvCache } from './kv-cache.ts';
import {
  paddedRows,
  type RowRequest,
  type RowResult,
  readRows,
  rowFeeds,
  rowFetches,
  rowOutputs,
} from './row-choice.ts';

/** Keys of a pass are padded to a multiple of this. */
const KEY_PADDING = 32;

/** New tokens of one sequence: `tokenIds` stand at `start`, `start + 1`, … */
export interface Chunk {
  readonly table: BlockTable;
  readonly start: number;
  readonly tokenIds: readonly number[];
  /** Tokens, by index into `tokenIds`, whose next token's distribution is wanted, and what of it. */
  readonly rows: readonly (RowRequest & { readonly at: number })[];
}

/** B sequences, T new tokens each, S keys, M wanted rows. Ids from `vocabSize` on are never drawn. */
export function prefillGraph(config: DecoderConfig, lora: LoraSpec | null, vocabSize: number): Graph {
  const model = declareDecoder(config, lora);
  const newSlots = input('newSlots', [multiplyDims(['B', config.kvHeads, 'T'])], 'int64');
  const outputs: Record<string, Tensor> = {};
  /** [B, K, T, C] of this pass among the cached ones: [B, K, S, C]. */
  const join = (name: string, fresh: Tensor): Tensor => {
    outputs[`${name}.new`] = fresh;
    const cached = input(name, ['B', config.kvHeads, 'S', config.headSize]);
    const rows = (x: Tensor): Tensor => reshape(x, [multiplyDims(x.shape.slice(0, 3)), config.headSize]);
    return reshapeLike(scatterRows(rows(cached), newSlots, rows(fresh)), cached);
  };
  const route: KeyValueRoute = (layer, keys, values) => ({
    keys: join(`keys.${layer}`, keys),
    values: join(`values.${layer}`, values),
  });
  const hidden = decoderHidden(model, declareInputs(config, 'S'), route);
  const logits = scaledLogits(
    model,
    hidden,
    input('logitRows', ['M'], 'int64'),
    input('inverseTemperatures', ['M', 1]),
  );
  return makeGraph({ ...rowOutputs(logits, vocabSize), ...outputs });
}

/** Sizes of one pass. */
interface Extent {
  readonly batch: number;
  readonly time: number;
  readonly keys: number;
}

/** Not reentrant: a pass must end before the next begins. */
export class PrefillPass {
  readonly #config: DecoderConfig;
  readonly #cache: KvCache;
  readonly #executable: Executable;
  /** Fed with every pass. */
  readonly #fixed: Feeds;
  readonly #vocabSize: number;
  /** Zeros that stand for an empty cache. */
  #nothing = new Float32Array(0);

  constructor(config: DecoderConfig, cache: KvCache, executable: Executable, fixed: Feeds, vocabSize: number) {
    this.#config = config;
    this.#cache = cache;
    this.#executable = executable;
    this.#fixed = fixed;
    this.#vocabSize = vocabSize;
  }

  /** Runs all chunks in one pass, writes their keys and values into the cache, and returns the wanted rows in order. */
  async run(chunks: readonly Chunk[], policy: Feeds): Promise<RowResult[]> {
    const { heads, kvHeads, headSize, layers } = this.#config;
    const time = Math.max(heads === kvHeads ? minProductRows : 1, ...chunks.map(({ tokenIds }) => tokenIds.length));
    const lastKey = Math.max(minKeys(headSize), ...chunks.map(({ start }) => start + time));
    const extent = {
      batch: Math.max(minProductRows, chunks.length),
      time,
      keys: Math.ceil(lastKey / KEY_PADDING) * KEY_PADDING,
    };
    const requests = chunks.flatMap(({ rows }) => rows);
    const results = await this.#executable.run(
      {
        ...this.#fixed,
        ...policy,
        ...this.#tokenFeeds(chunks, extent),
        ...this.#maskFeeds(chunks, extent),
        ...this.#cacheFeeds(chunks, extent),
        ...rowFeeds(requests, this.#vocabSize),
      },
      [
        ...Array.from({ length: layers }, (_, layer) => [`keys.${layer}.new`, `values.${layer}.new`]).flat(),
        ...rowFetches(requests),
      ],
    );
    const headStride = time * headSize;
    for (let layer = 0; layer < layers; layer++) {
      for (const [pool, name] of this.#pools(layer)) {
        const data = results[`${name}.new`]!.data as Float32Array;
        for (const [b, { table, start, tokenIds }] of chunks.entries()) {
          const offset = b * kvHeads * headStride;
          this.#cache.write(table, pool, start, tokenIds.length, { data, offset, headStride });
        }
      }
    }
    return readRows(requests, results);
  }

  #pools(layer: number): readonly (readonly [pool: Float32Array, name: string])[] {
    return [
      [this.#cache.keys[layer]!, `keys.${layer}`],
      [this.#cache.values[layer]!, `values.${layer}`],
    ];
  }

  #tokenFeeds(chunks: readonly Chunk[], { batch, time, keys }: Extent): Feeds {
    const { kvHeads, maxPositions } = this.#config;
    const tokenIds = new BigInt64Array(batch * time);
    const positions = new BigInt64Array(batch * time);
    const newSlots = new BigInt64Array(batch * kvHeads * time);
    const logitRows: number[] = [];
    for (let b = 0; b < batch; b++) {
      const chunk = chunks[b];
      const start = chunk?.start ?? 0;
      for (let t = 0; t < time; t++) {
        tokenIds[b * time + t] = BigInt(chunk?.tokenIds[t] ?? 0);
        positions[b * time + t] = BigInt(Math.min(start + t, maxPositions - 1));
        for (let k = 0; k < kvHeads; k++) {
          newSlots[(b * kvHeads + k) * time + t] = BigInt((b * kvHeads + k) * keys + start + t);
        }
      }
      for (const { at } of chunk?.rows ?? []) logitRows.push(b * time + at);
    }
    while (logitRows.length < paddedRows(logitRows.length)) logitRows.push(0);
    const ids = (data: BigInt64Array, ...shape: number[]): HostTensor => ({ dtype: 'int64', shape, data });
    return {
      tokenIds: ids(tokenIds, batch, time),
      positions: ids(positions, batch, time),
      newSlots: ids(newSlots, newSlots.length),
      logitRows: hostIds(logitRows),
    };
  }

  #maskFeeds(chunks: readonly Chunk[], { batch, time, keys }: Extent): Feeds {
    const config = this.#config;
    const queriesPerKey = config.heads / config.kvHeads;
    const feeds: Record<string, HostTensor> = {};
    for (const kind of layerKinds(config)) {
      const data = new Float32Array(batch * queriesPerKey * time * keys).fill(maskedScore);
      for (let b = 0; b < batch; b++) {
        const start = chunks[b]?.start ?? 0;
        const base = b * queriesPerKey * time * keys;
        for (let t = 0; t < time; t++) {
          const row = base + t * keys;
          data.fill(0, row + firstVisibleKey(config, kind, start + t), row + start + t + 1);
        }
        for (let g = 1; g < queriesPerKey; g++) data.copyWithin(base + g * time * keys, base, base + time * keys);
      }
      feeds[maskNames[kind]] = hostTensor(data, [batch, 1, queriesPerKey * time, keys]);
    }
    return feeds;
  }

  #cacheFeeds(chunks: readonly Chunk[], { batch, keys }: Extent): Feeds {
    const { layers, kvHeads, headSize } = this.#config;
    const shape = [batch, kvHeads, keys, headSize];
    const count = batch * kvHeads * keys * headSize;
    const isFresh = chunks.every(({ start }) => start === 0);
    if (isFresh && this.#nothing.length < count) this.#nothing = new Float32Array(count);
    const nothing = hostTensor(this.#nothing.subarray(0, count), shape);
    const feeds: Record<string, HostTensor> = {};
    const headStride = keys * headSize;
    for (let layer = 0; layer < layers; layer++) {
      for (const [pool, name] of this.#pools(layer)) {
        if (isFresh) {
          feeds[name] = nothing;
          continue;
        }
        const data = new Float32Array(count);
        for (const [b, { table, start }] of chunks.entries()) {
          this.#cache.read(table, pool, 0, start, { data, offset: b * kvHeads * headStride, headStride });
        }
        feeds[name] = hostTensor(data, shape);
      }
    }
    return feeds;
  }
}
