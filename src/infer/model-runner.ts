/**
 * Runs the decoder over the KV cache: many sequences at once, each with one or more new tokens. Layer 3.
 * The graph reads the pools as inputs, puts the new keys and values among the gathered ones at their own index, and returns only the
 * new ones, which are then written into the pools. The same graph serves prefill (T > 1) and decode (T = 1).
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { maskedScore, minProductRows } from '../graph/bit-exact.ts';
import {
  type Graph,
  gatherRows,
  input,
  makeGraph,
  reshape,
  reshapeLike,
  scatterRows,
  type Tensor,
  transpose,
} from '../graph/builder.ts';
import { type Executable, type HostTensor, hostTensor, type Runtime } from '../graph/runtime.ts';
import { firstVisibleKey, layerKinds, maskNames } from '../nn/attention-masks.ts';
import { declareDecoder, declareInputs, decoderHidden, decoderLogprobs, type KeyValueRoute } from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import type { Parameter } from '../nn/parameters.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import type { BlockTable, KvCache } from './kv-cache.ts';

/** Keys of a pass are padded to a multiple of this. */
const KEY_PADDING = 64;

/** New tokens of one sequence: `tokenIds` stand at `start`, `start + 1`, … */
export interface Chunk {
  readonly table: BlockTable;
  readonly start: number;
  readonly tokenIds: readonly number[];
  /** Which of the chunk's tokens want a row of logprobs, by index into `tokenIds`. */
  readonly logitsAt: readonly number[];
  readonly inverseTemperature: number;
}

/** Weights that belong to one policy step, by graph input name. */
export type PolicyFeeds = Readonly<Record<string, HostTensor>>;

/** One compiled graph over one cache. Not reentrant: a pass must end before the next begins. */
export class ModelRunner {
  readonly #config: DecoderConfig;
  readonly #cache: KvCache;
  readonly #executable: Executable;
  readonly #fixedFeeds: PolicyFeeds;

  private constructor(config: DecoderConfig, cache: KvCache, executable: Executable) {
    this.#config = config;
    this.#cache = cache;
    this.#executable = executable;
    const fixed = createRopeFeeds(config);
    for (let layer = 0; layer < config.layers; layer++) {
      fixed[`keys.${layer}`] = hostTensor(cache.keys[layer]!, [cache.rows, cache.rowWidth]);
      fixed[`values.${layer}`] = hostTensor(cache.values[layer]!, [cache.rows, cache.rowWidth]);
    }
    this.#fixedFeeds = fixed;
  }

  /** `baked` parameters become constants of the session, which packs them for small batches; the others are fed by `PolicyFeeds`. */
  static async create(
    config: DecoderConfig,
    lora: LoraSpec | null,
    cache: KvCache,
    runtime: Runtime,
    baked: ReadonlyMap<string, Parameter>,
  ): Promise<ModelRunner> {
    const constants = new Map([...baked].map(([name, { data }]) => [name, data]));
    return new ModelRunner(config, cache, await runtime.compile(samplingGraph(config, lora), { constants }));
  }

  /** Runs all chunks in one pass, and returns the wanted rows in order, each [V] and a view of the same array. */
  async run(chunks: readonly Chunk[], policy: PolicyFeeds): Promise<Float32Array[]> {
    const { feeds, wantedRows, time } = this.#layOut(chunks);
    const results = await this.#executable.run({ ...this.#fixedFeeds, ...policy, ...feeds });
    for (let layer = 0; layer < this.#config.layers; layer++) {
      this.#write(chunks, time, this.#cache.keys[layer]!, results[`keys.${layer}.new`]!.data as Float32Array);
      this.#write(chunks, time, this.#cache.values[layer]!, results[`values.${layer}.new`]!.data as Float32Array);
    }
    const logprobs = results.logprobs!.data as Float32Array;
    const width = this.#config.vocabSize;
    return Array.from({ length: wantedRows }, (_, row) => logprobs.subarray(row * width, (row + 1) * width));
  }

  #layOut(chunks: readonly Chunk[]): { feeds: Record<string, HostTensor>; wantedRows: number; time: number } {
    const config = this.#config;
    const queriesPerKey = config.heads / config.kvHeads;
    const batch = Math.max(minProductRows, chunks.length);
    const time = Math.max(queriesPerKey === 1 ? minProductRows : 1, ...chunks.map((chunk) => chunk.tokenIds.length));
    const lastKey = Math.max(...chunks.map((chunk) => chunk.start + time));
    const keyCount = Math.ceil(lastKey / KEY_PADDING) * KEY_PADDING;
    const tokenIds = new BigInt64Array(batch * time);
    const positions = new BigInt64Array(batch * time);
    const slots = new BigInt64Array(batch * time);
    const rows = new BigInt64Array(batch * keyCount);
    const masks = layerKinds(config).map((kind) => ({
      kind,
      data: new Float32Array(batch * queriesPerKey * time * keyCount).fill(maskedScore),
    }));
    const logitRows: number[] = [];
    const inverseTemperatures: number[] = [];
    for (let b = 0; b < batch; b++) {
      const chunk = chunks[b];
      const start = chunk?.start ?? 0;
      for (let t = 0; t < time; t++) {
        const place = b * time + t;
        tokenIds[place] = BigInt(chunk?.tokenIds[t] ?? 0);
        positions[place] = BigInt(Math.min(start + t, config.maxPositions - 1));
        slots[place] = BigInt(b * keyCount + start + t);
        for (let g = 0; g < queriesPerKey; g++) {
          const query = ((b * queriesPerKey + g) * time + t) * keyCount;
          for (const { kind, data } of masks) {
            data.fill(0, query + firstVisibleKey(config, kind, start + t), query + start + t + 1);
          }
        }
      }
      if (!chunk) continue;
      for (let key = 0; key < start; key++) rows[b * keyCount + key] = BigInt(this.#cache.row(chunk.table, key));
      for (const t of chunk.logitsAt) {
        logitRows.push(b * time + t);
        inverseTemperatures.push(chunk.inverseTemperature);
      }
    }
    const wantedRows = logitRows.length;
    while (logitRows.length < minProductRows) {
      logitRows.push(0);
      inverseTemperatures.push(1);
    }
    const maskShape = [batch, 1, queriesPerKey * time, keyCount];
    const ids = (data: BigInt64Array, ...shape: number[]): HostTensor => ({ dtype: 'int64', shape, data });
    const feeds = {
      tokenIds: ids(tokenIds, batch, time),
      positions: ids(positions, batch, time),
      cacheRows: ids(rows, batch, keyCount),
      newSlots: ids(slots, batch * time),
      logitRows: ids(BigInt64Array.from(logitRows, BigInt), logitRows.length),
      inverseTemperatures: hostTensor(Float32Array.from(inverseTemperatures), [logitRows.length, 1]),
      ...Object.fromEntries(masks.map(({ kind, data }) => [maskNames[kind], hostTensor(data, maskShape)])),
    };
    return { feeds, wantedRows, time };
  }

  /** Copies the new rows of a pass, [B·T, K·C], to where the cache keeps them. */
  #write(chunks: readonly Chunk[], time: number, pool: Float32Array, fresh: Float32Array): void {
    const width = this.#cache.rowWidth;
    for (const [b, { table, start, tokenIds }] of chunks.entries()) {
      for (let t = 0; t < tokenIds.length; t++) {
        const from = (b * time + t) * width;
        pool.set(fresh.subarray(from, from + width), this.#cache.row(table, start + t) * width);
      }
    }
  }
}

/** One pass over the cache as a graph; B sequences, T new tokens each, S keys, M wanted rows. */
function samplingGraph(config: DecoderConfig, lora: LoraSpec | null): Graph {
  const model = declareDecoder(config, lora);
  const inputs = declareInputs(config, 'S');
  const rowWidth = config.kvHeads * config.headSize;
  const cacheRows = input('cacheRows', ['B', 'S'], 'int64');
  const newSlots = input('newSlots', ['B*T'], 'int64');
  const outputs: Record<string, Tensor> = {};

  /** [B, K, T, C] of this pass and the pool → [B, K, S, C], and the new rows as an output. */
  const join = (name: string, fresh: Tensor): Tensor => {
    const rows = reshape(transpose(fresh, [0, 2, 1, 3]), ['B*T', rowWidth]);
    outputs[`${name}.new`] = rows;
    const cached = gatherRows(input(name, ['R', rowWidth]), cacheRows); // [B, S, K·C]
    const joined = reshapeLike(scatterRows(reshape(cached, ['B*S', rowWidth]), newSlots, rows), cached);
    return transpose(reshape(joined, ['B', 'S', config.kvHeads, config.headSize]), [0, 2, 1, 3]);
  };
  const route: KeyValueRoute = (layer, keys, values) => ({
    keys: join(`keys.${layer}`, keys),
    values: join(`values.${layer}`, values),
  });

  const hidden = decoderHidden(model, inputs, route);
  const logitRows = input('logitRows', ['M'], 'int64');
  outputs.logprobs = decoderLogprobs(model, hidden, logitRows, input('inverseTemperatures', ['M', 1]));
  return makeGraph(outputs);
}
