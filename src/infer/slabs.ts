/**
 * What decode passes read of the cache: keys and values of sequences, or of parts of them, side by side as [B, K, S, C]. Layer 3.
 * A slot holds one part; rows after its last token are zero. Slots stay where they are from pass to pass, so that a pass copies only
 * the new tokens; a slot that becomes free takes the last one's content. The cache stays the truth: a slot can be filled from it again.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { minKeys, minProductRows } from '../graph/bit-exact.ts';
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import type { BlockTable, KvCache } from './kv-cache.ts';

/** S is a multiple of this: finer, and growing costs more than the padding. */
const KEY_STEP = 32;

/** The tokens [start, start + count) of a sequence, which stand in the cache. */
export interface Part {
  /** Parts of equal key have equal content as far as both go. */
  readonly key: unknown;
  readonly table: BlockTable;
  readonly start: number;
  readonly count: number;
  /** Tokens that the part may come to have. */
  readonly reserve: number;
}

export class Slabs {
  readonly #cache: KvCache;
  readonly #kvHeads: number;
  readonly #headSize: number;
  readonly #leastSlots: number;
  /** Keys of layer 0, values of layer 0, keys of layer 1, … */
  readonly #pools: readonly Float32Array[];
  #slabs: Float32Array[];
  #parts: Part[] = [];
  #keyCount: number;
  #tensors: HostTensor[] = [];

  /** Products over slots of one query row each need two of them. */
  constructor(config: DecoderConfig, cache: KvCache, leastSlots: number = minProductRows) {
    this.#cache = cache;
    this.#kvHeads = config.kvHeads;
    this.#headSize = config.headSize;
    this.#leastSlots = leastSlots;
    this.#pools = cache.keys.flatMap((keys, layer) => [keys, cache.values[layer]!]);
    this.#slabs = this.#pools.map(() => new Float32Array(0));
    this.#keyCount = this.#roundKeys(1);
  }

  /** S */
  get keyCount(): number {
    return this.#keyCount;
  }

  /** B */
  get slots(): number {
    return Math.max(this.#leastSlots, this.#parts.length);
  }

  /** Makes the slots hold these parts and no others, with room for `more` tokens each. Returns them in the order of the slots. */
  hold(parts: readonly Part[], more: number): readonly Part[] {
    const wanted = new Map(parts.map((part) => [part.key, part]));
    for (let slot = this.#parts.length - 1; slot >= 0; slot--) {
      const { key, start, count } = this.#parts[slot]!;
      const part = wanted.get(key);
      if (part?.start !== start || part.count !== count) this.#drop(slot);
    }
    const needed = this.#roundKeys(Math.max(...parts.map(({ count }) => count)) + more);
    if (this.#parts.length === 0) this.#keyCount = needed;
    // As much as these parts may come to need: a slab that grows by pieces is copied, and its memory new, each time.
    const longest = Math.max(needed, this.#keyCount, this.#roundKeys(Math.max(...parts.map(({ reserve }) => reserve))));
    this.#reserve(Math.max(this.#leastSlots, parts.length) * this.#kvHeads * longest * this.#headSize);
    if (needed > this.#keyCount || needed * 2 <= this.#keyCount) this.#spread(needed);
    const held = new Set(this.#parts.map(({ key }) => key));
    for (const part of parts) if (!held.has(part.key)) this.#fill(part);
    return this.#parts;
  }

  /** [B, K, S, C] of each slab, in the order keys of layer 0, values of layer 0, … The same objects while their shape stays. */
  tensors(): readonly HostTensor[] {
    const shape = [this.slots, this.#kvHeads, this.#keyCount, this.#headSize];
    const count = shape.reduce((product, size) => product * size);
    const first = this.#tensors[0];
    const isCurrent = first?.data.buffer === this.#slabs[0]!.buffer && first.shape.join() === shape.join();
    if (!isCurrent) this.#tensors = this.#slabs.map((slab) => hostTensor(slab.subarray(0, count), shape));
    return this.#tensors;
  }

  /** Adds one token to each part, here and in the cache: `fresh` is [slabs, B, K·C]. */
  append(fresh: Float32Array): void {
    const size = this.#headSize;
    const slots = this.slots;
    for (const [i, slab] of this.#slabs.entries()) {
      for (const [slot, { table, start, count }] of this.#parts.entries()) {
        const offset = (i * slots + slot) * this.#kvHeads * size;
        for (let head = 0; head < this.#kvHeads; head++) {
          const to = ((slot * this.#kvHeads + head) * this.#keyCount + count) * size;
          const from = offset + head * size;
          for (let c = 0; c < size; c++) slab[to + c] = fresh[from + c]!;
        }
        this.#cache.write(table, this.#pools[i]!, start + count, 1, { data: fresh, offset, headStride: size });
      }
    }
    this.#parts = this.#parts.map((part) => ({ ...part, count: part.count + 1 }));
  }

  get #slotValues(): number {
    return this.#kvHeads * this.#keyCount * this.#headSize;
  }

  #roundKeys(keys: number): number {
    return Math.ceil(Math.max(keys, minKeys(this.#headSize)) / KEY_STEP) * KEY_STEP;
  }

  #drop(slot: number): void {
    const last = this.#parts.pop()!;
    if (slot === this.#parts.length) return;
    this.#parts[slot] = last;
    const [size, from] = [this.#slotValues, this.#parts.length];
    for (const slab of this.#slabs) slab.copyWithin(slot * size, from * size, (from + 1) * size);
  }

  #fill(part: Part): void {
    const size = this.#slotValues;
    const offset = this.#parts.length * size;
    const headStride = this.#keyCount * this.#headSize;
    for (const [i, data] of this.#slabs.entries()) {
      data.fill(0, offset, offset + size);
      this.#cache.read(part.table, this.#pools[i]!, part.start, part.count, { data, offset, headStride });
    }
    this.#parts.push(part);
  }

  /** Room for `values` in each slab. */
  #reserve(values: number): void {
    if (this.#slabs[0]!.length >= values) return;
    const used = this.#parts.length * this.#slotValues;
    this.#slabs = this.#slabs.map((slab) => {
      const larger = new Float32Array(values);
      larger.set(slab.subarray(0, used));
      return larger;
    });
  }

  /** Changes S: the rows of every head move apart or together. There must be room for them. */
  #spread(keyCount: number): void {
    const [before, after] = [this.#keyCount * this.#headSize, keyCount * this.#headSize];
    const heads = this.#parts.length * this.#kvHeads;
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
