/** Runs decode passes: keeps what they read side by side, and shares the heads of sequences that begin alike. Layer 3. */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { attentionBlock, maskedScore } from '../graph/bit-exact.ts';
import { type Executable, type Feeds, type HostTensor, hostIds, hostTensor } from '../graph/runtime.ts';
import { firstVisibleKey, layerKinds, maskNames } from '../nn/attention-masks.ts';
import { queryRows } from './decode-graph.ts';
import { BLOCK_TOKENS, type BlockTable, type KvCache } from './kv-cache.ts';
import { paddedRows, type RowRequest, type RowResult, readRows, rowFeeds, rowFetches } from './row-choice.ts';
import { type Part, Slabs } from './slabs.ts';

/** The next token of a sequence whose first `length` tokens stand in the cache. */
export interface DecodeEntry {
  readonly table: BlockTable;
  readonly length: number;
  readonly tokenId: number;
  readonly row: RowRequest;
}

/** The graph for sequences inside their first block, and that for all; compiled when asked for. */
export type DecodeExecutable = (hasHeads: boolean) => Promise<Executable>;

/** Heads of the sequences in the slots. */
interface HeadLayout {
  readonly feeds: Feeds;
  /** H; 0 without heads. */
  readonly keyCount: number;
}

/** Not reentrant: a pass must end before the next begins. */
export class DecodePass {
  readonly #config: DecoderConfig;
  readonly #executable: DecodeExecutable;
  /** Fed with every pass. */
  readonly #fixed: Feeds;
  readonly #vocabSize: number;
  readonly #block: number;
  readonly #slabs: Slabs;
  readonly #heads: Slabs;
  #identity: HostTensor = hostTensor(new Float32Array(0), [0]);

  constructor(config: DecoderConfig, cache: KvCache, executable: DecodeExecutable, fixed: Feeds, vocabSize: number) {
    this.#config = config;
    this.#executable = executable;
    this.#fixed = fixed;
    this.#vocabSize = vocabSize;
    this.#block = attentionBlock(config.headSize);
    this.#slabs = new Slabs(config, cache);
    this.#heads = new Slabs(config, cache, 1);
  }

  /** Runs all entries in one pass, writes their keys and values into the cache, and returns their rows in order. */
  async run(entries: readonly DecodeEntry[], policy: Feeds): Promise<RowResult[]> {
    const byTable = new Map(entries.map((entry) => [entry.table, entry]));
    const held = this.#slabs.hold(
      entries.map((entry) => this.#ownPart(entry)),
      1,
    );
    const inSlots = held.map(({ table }) => byTable.get(table)!);
    const heads = this.#layOutHeads(inSlots);
    const executable = await this.#executable(heads.keyCount > 0);
    const requests = inSlots.map(({ row }) => row);
    const results = await executable.run(
      {
        ...this.#fixed,
        ...policy,
        ...named(this.#slabs.tensors(), 'keys', 'values'),
        ...heads.feeds,
        ...this.#tokenFeeds(inSlots),
        ...this.#maskFeeds(inSlots, heads.keyCount),
        ...rowFeeds(requests, this.#vocabSize),
      },
      ['fresh', ...rowFetches(requests)],
    );
    this.#slabs.append(results.fresh!.data as Float32Array);
    const rows = readRows(requests, results);
    const rowOf = new Map(inSlots.map(({ table }, slot) => [table, rows[slot]!]));
    return entries.map(({ table }) => rowOf.get(table)!);
  }

  /** Tokens before the block of the new one. */
  #headLength(length: number): number {
    return length - (length % this.#block);
  }

  #ownPart({ table, length }: DecodeEntry): Part {
    const start = this.#headLength(length);
    const reserve = Math.min(this.#block, table.blocks.length * BLOCK_TOKENS - start);
    return { key: table, table, start, count: length - start, reserve };
  }

  #layOutHeads(inSlots: readonly DecodeEntry[]): HeadLayout {
    const parts = new Map<string, Part>();
    const keys = inSlots.map(({ table, length }) => {
      const count = this.#headLength(length);
      if (count === 0) return null;
      const key = table.identities[count / BLOCK_TOKENS - 1]!;
      if (!parts.has(key)) parts.set(key, { key, table, start: 0, count, reserve: count });
      return key;
    });
    if (parts.size === 0) return { feeds: {}, keyCount: 0 };
    const held = this.#heads.hold([...parts.values()], 0);
    const readers = new Map(held.map(({ key }): [unknown, number[]] => [key, []]));
    for (const [slot, key] of keys.entries()) if (key !== null) readers.get(key)!.push(slot);
    // A sequence without head takes part in some product as well, where all its probabilities are 0.
    const fewest = (): number[] => [...readers.values()].reduce((a, b) => (b.length < a.length ? b : a));
    for (const [slot, key] of keys.entries()) if (key === null) fewest().push(slot);
    for (let slot = keys.length; slot < this.#slabs.slots; slot++) fewest().push(slot);
    const most = Math.max(...[...readers.values()].map((slots) => slots.length));
    const slotOf = new Array<number>(held.length * most).fill(0);
    const placeOf = new Array<number>(this.#slabs.slots).fill(0);
    for (const [r, { key }] of held.entries()) {
      for (const [m, slot] of readers.get(key)!.entries()) {
        slotOf[r * most + m] = slot;
        placeOf[slot] = r * most + m;
      }
    }
    return {
      feeds: {
        ...named(this.#heads.tensors(), 'headKeys', 'headValues'),
        slotOf: hostIds(slotOf, [held.length, most]),
        placeOf: hostIds(placeOf),
      },
      keyCount: this.#heads.keyCount,
    };
  }

  #tokenFeeds(inSlots: readonly DecodeEntry[]): Feeds {
    const { kvHeads } = this.#config;
    const { slots } = this.#slabs;
    const rows = queryRows(this.#config);
    const tokenIds = new BigInt64Array(slots);
    const positions = new BigInt64Array(slots);
    const newKey = new BigInt64Array(slots * kvHeads * rows);
    for (const [slot, { tokenId, length }] of inSlots.entries()) {
      tokenIds[slot] = BigInt(tokenId);
      positions[slot] = BigInt(length);
      newKey.fill(BigInt(length % this.#block), slot * kvHeads * rows, (slot + 1) * kvHeads * rows);
    }
    return {
      tokenIds: { dtype: 'int64', shape: [slots, 1], data: tokenIds },
      positions: { dtype: 'int64', shape: [slots, 1], data: positions },
      newKey: { dtype: 'int64', shape: [slots, kvHeads, rows, 1], data: newKey },
      identity: this.#identityOf(slots),
      logitRows: hostIds(Array.from({ length: paddedRows(inSlots.length) }, (_, row) => row)),
    };
  }

  /** Keys of the head first, then those of the slab. */
  #maskFeeds(inSlots: readonly DecodeEntry[], headKeys: number): Feeds {
    const { slots, keyCount } = this.#slabs;
    const width = headKeys + keyCount;
    const feeds: Record<string, HostTensor> = {};
    for (const kind of layerKinds(this.#config)) {
      const data = new Float32Array(slots * width).fill(maskedScore);
      for (let slot = 0; slot < slots; slot++) {
        const length = inSlots[slot]?.length ?? 0;
        const start = this.#headLength(length);
        const first = firstVisibleKey(this.#config, kind, length);
        const row = slot * width;
        if (first < start) data.fill(0, row + first, row + start);
        data.fill(0, row + headKeys + Math.max(0, first - start), row + headKeys + length - start + 1);
      }
      feeds[maskNames[kind]] = hostTensor(data, [slots, 1, 1, width]);
    }
    return feeds;
  }

  /** [B, K, G, G] */
  #identityOf(slots: number): HostTensor {
    if (this.#identity.shape[0] === slots) return this.#identity;
    const { kvHeads } = this.#config;
    const rows = queryRows(this.#config);
    const data = Float32Array.from({ length: slots * kvHeads * rows * rows }, (_, i) =>
      Number(Math.floor(i / rows) % rows === i % rows),
    );
    this.#identity = hostTensor(data, [slots, kvHeads, rows, rows]);
    return this.#identity;
  }
}

/** Feeds of all layers from tensors in the order keys of layer 0, values of layer 0, … */
function named(tensors: readonly HostTensor[], keys: string, values: string): Feeds {
  return Object.fromEntries(tensors.map((tensor, i) => [`${i % 2 === 0 ? keys : values}.${i >> 1}`, tensor]));
}
