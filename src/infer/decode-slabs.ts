/**
 * What decode passes read of the cache: the keys and values of the running sequences, side by side as [B, K, S, C]. Layer 3.
 * A slot holds one sequence; rows after its last token are zero. Slots stay where they are from pass to pass, so that a pass copies only
 * the new tokens; a slot that becomes free takes the last one's content. The cache stays the truth, and a slab can be filled from it again.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { minKeys, minProductRows } from '../graph/bit-exact.ts';
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import { BLOCK_TOKENS, type BlockTable, type KvCache } from './kv-cache.ts';

/** S is a multiple of this: finer, and growing costs more than the padding. */
const KEY_STEP = 32;

/** A sequence whose first `length` tokens stand in the cache. */
export interface Cached {
  readonly table: BlockTable;
  readonly length: number;
}

interface Slot {
  readonly table: BlockTable;
  length: number;
}

export class DecodeSlabs {
  readonly #cache: KvCache;
  readonly #kvHeads: number;
  readonly #headSize: number;
  /** Keys of layer 0, values of layer 0, keys of layer 1, … */
  readonly #pools: readonly Float32Array[];
  #slabs: Float32Array[];
  #slots: Slot[] = [];
  #keyCount: number;
  #tensors: HostTensor[] = [];

  constructor(config: DecoderConfig, cache: KvCache) {
    this.#cache = cache;
    this.#kvHeads = config.kvHeads;
    this.#headSize = config.headSize;
    this.#pools = cache.keys.flatMap((keys, layer) => [keys, cache.values[layer]!]);
    this.#slabs = this.#pools.map(() => new Float32Array(0));
    this.#keyCount = roundKeys(1, config.headSize);
  }

  /** S */
  get keyCount(): number {
    return this.#keyCount;
  }

  /** Slots of the graph: products need two. */
  get batch(): number {
    return Math.max(minProductRows, this.#slots.length);
  }

  /**
   * Makes the slots hold these sequences and no others, with room for one more token each. Returns their tables in the order of the
   * slots.
   */
  hold(sequences: readonly Cached[]): readonly BlockTable[] {
    const lengths = new Map(sequences.map(({ table, length }) => [table, length]));
    for (let slot = this.#slots.length - 1; slot >= 0; slot--) {
      const { table, length } = this.#slots[slot]!;
      if (lengths.get(table) !== length) this.#drop(slot);
    }
    const needed = roundKeys(Math.max(...lengths.values()) + 1, this.#headSize);
    // As much as these sequences may come to need: a slab that grows by pieces is copied, and its memory new, each time.
    const longest = Math.max(...sequences.map(({ table }) => table.blocks.length)) * BLOCK_TOKENS;
    const slots = Math.max(minProductRows, sequences.length);
    if (this.#slots.length === 0) this.#keyCount = needed;
    const keyCount = Math.max(needed, this.#keyCount, roundKeys(longest, this.#headSize));
    this.#reserve(slots * this.#kvHeads * keyCount * this.#headSize);
    if (needed > this.#keyCount || needed * 2 <= this.#keyCount) this.#spread(needed);
    const held = new Set(this.#slots.map(({ table }) => table));
    for (const { table, length } of sequences) if (!held.has(table)) this.#fill(table, length);
    return this.#slots.map(({ table }) => table);
  }

  /** [B, K, S, C] of each slab, in the order keys of layer 0, values of layer 0, … The same objects while their shape stays. */
  tensors(): readonly HostTensor[] {
    const shape = [this.batch, this.#kvHeads, this.#keyCount, this.#headSize];
    const count = shape.reduce((product, size) => product * size);
    const first = this.#tensors[0];
    const isCurrent = first?.data.buffer === this.#slabs[0]!.buffer && first.shape.join() === shape.join();
    if (!isCurrent) this.#tensors = this.#slabs.map((slab) => hostTensor(slab.subarray(0, count), shape));
    return this.#tensors;
  }

  /** Adds one token to each slot, here and in the cache: `fresh` is [slabs, B, K·C]. */
  append(fresh: Float32Array): void {
    const size = this.#headSize;
    const batch = this.batch;
    for (const [i, slab] of this.#slabs.entries()) {
      for (const [slot, { table, length }] of this.#slots.entries()) {
        const offset = (i * batch + slot) * this.#kvHeads * size;
        for (let head = 0; head < this.#kvHeads; head++) {
          const to = ((slot * this.#kvHeads + head) * this.#keyCount + length) * size;
          const from = offset + head * size;
          for (let c = 0; c < size; c++) slab[to + c] = fresh[from + c]!;
        }
        this.#cache.write(table, this.#pools[i]!, length, 1, { data: fresh, offset, headStride: size });
      }
    }
    for (const slot of this.#slots) slot.length++;
  }

  get #slotValues(): number {
    return this.#kvHeads * this.#keyCount * this.#headSize;
  }

  #drop(slot: number): void {
    const last = this.#slots.pop()!;
    if (slot === this.#slots.length) return;
    this.#slots[slot] = last;
    const [size, from] = [this.#slotValues, this.#slots.length];
    for (const slab of this.#slabs) slab.copyWithin(slot * size, from * size, (from + 1) * size);
  }

  #fill(table: BlockTable, length: number): void {
    const size = this.#slotValues;
    const offset = this.#slots.length * size;
    const headStride = this.#keyCount * this.#headSize;
    for (const [i, data] of this.#slabs.entries()) {
      data.fill(0, offset, offset + size);
      this.#cache.read(table, this.#pools[i]!, 0, length, { data, offset, headStride });
    }
    this.#slots.push({ table, length });
  }

  /** Room for `values` in each slab. */
  #reserve(values: number): void {
    if (this.#slabs[0]!.length >= values) return;
    const used = this.#slots.length * this.#slotValues;
    this.#slabs = this.#slabs.map((slab) => {
      const larger = new Float32Array(values);
      larger.set(slab.subarray(0, used));
      return larger;
    });
  }

  /** Changes S: the rows of every head move apart or together. There must be room for them. */
  #spread(keyCount: number): void {
    const [before, after] = [this.#keyCount * this.#headSize, keyCount * this.#headSize];
    const heads = this.#slots.length * this.#kvHeads;
    for (const slab of this.#slabs) {
      if (after < before) {
        for (let head = 0; head < heads; head++) {
          slab.copyWithin(head * after, head * before, head * before + after);
        }
        continue;
      }
      // The last first: what is overwritten has moved already.
      for (let head = heads - 1; head >= 0; head--) {
        slab.copyWithin(head * after, head * before, (head + 1) * before);
        slab.fill(0, head * after + before, (head + 1) * after);
      }
    }
    this.#keyCount = keyCount;
  }
}

function roundKeys(keys: number, headSize: number): number {
  return Math.ceil(Math.max(keys, minKeys(headSize)) / KEY_STEP) * KEY_STEP;
}
