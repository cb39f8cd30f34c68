/**
 * The KV cache: pools owned by JavaScript, handed out in blocks, with reuse of equal prefixes. Layer 3.
 * A block of a layer's pool is [K, 8, C]: the keys, or values, of eight tokens. It is found again by its policy and all tokens up
 * to its end, so a conversation's next turn and the other rollouts of a group compute only what is new; reuse is bit-exact because a
 * token's keys and values depend on nothing else. Source of the scheme: vLLM's paged attention, as condensed in nano-vllm.
 */
import { ConfigError } from '../core/errors.ts';
import type { DecoderConfig } from '../formats/hf-config.ts';

/** Tokens of one block. Small, because a partly filled block cannot be shared. */
export const BLOCK_TOKENS = 8;

/** Tokens of a sequence outside the cache: each kv head has its rows [tokens, C] at `offset` + head · `headStride` of `data`. */
export interface HeadRows {
  readonly data: Float32Array;
  readonly offset: number;
  readonly headStride: number;
}

/** `set` of a view costs more than the copy itself where that is short. */
const LONG_COPY = 128;

function copyValues(source: Float32Array, from: number, target: Float32Array, to: number, count: number): void {
  if (count >= LONG_COPY) target.set(source.subarray(from, from + count), to);
  else for (let i = 0; i < count; i++) target[to + i] = source[from + i]!;
}

interface Block {
  users: number;
  /** Unique per content; 0 = content not yet complete. Children are found under it. */
  identity: number;
  /** Key in the prefix index, to delete it on eviction. */
  key: string | null;
}

/** The blocks of one sequence, in order. */
export interface BlockTable {
  readonly blocks: number[];
  /** Identity of the last complete block, or of the policy's root. */
  lastIdentity: string;
  /** Complete blocks that stand in the prefix index. */
  completeBlocks: number;
  /** Of each complete block: equal for equal content after an equal prefix under the same policy, and never used again for other content. */
  readonly identities: string[];
}

/** Holds `capacityTokens` rounded down to whole blocks; memory is taken at construction. Throws ConfigError below one block. */
export class KvCache {
  /** Per layer [blocks, K, BLOCK_TOKENS, C]. */
  readonly keys: readonly Float32Array[];
  readonly values: readonly Float32Array[];
  readonly #kvHeads: number;
  readonly #headSize: number;
  readonly #blocks: Block[];
  /** Blocks without users, the longest unused first; their content may still be found. */
  readonly #free = new Set<number>();
  readonly #prefixes = new Map<string, number>();
  #lastIdentity = 0;

  constructor(model: Pick<DecoderConfig, 'layers' | 'kvHeads' | 'headSize'>, capacityTokens: number) {
    const count = Math.floor(capacityTokens / BLOCK_TOKENS);
    if (count < 1) throw new ConfigError(`cacheTokens: must be at least ${BLOCK_TOKENS}, got ${capacityTokens}`);
    const { layers, kvHeads, headSize } = model;
    this.#kvHeads = kvHeads;
    this.#headSize = headSize;
    const pools = (): Float32Array[] =>
      Array.from({ length: layers }, () => new Float32Array(count * kvHeads * BLOCK_TOKENS * headSize));
    this.keys = pools();
    this.values = pools();
    this.#blocks = Array.from({ length: count }, () => ({ users: 0, identity: 0, key: null }));
    for (let block = 0; block < count; block++) this.#free.add(block);
  }

  /** Tokens that could be handed out now. */
  get freeTokens(): number {
    return this.#free.size * BLOCK_TOKENS;
  }

  get capacityTokens(): number {
    return this.#blocks.length * BLOCK_TOKENS;
  }

  /**
   * Room for `totalTokens` of which `tokenIds` are known, reusing complete blocks of a common prefix that the same policy computed;
   * null if there is not enough. `policyIdentity` must be unique per set of weights, not per step: a step may be published again.
   * `cachedTokens` of the result are already computed; at least the last known token is not, since its logits are wanted.
   */
  allocate(
    policyIdentity: number,
    tokenIds: readonly number[],
    totalTokens: number,
  ): { readonly table: BlockTable; readonly cachedTokens: number } | null {
    const table: BlockTable = { blocks: [], lastIdentity: `p${policyIdentity}`, completeBlocks: 0, identities: [] };
    const reusable = Math.floor((tokenIds.length - 1) / BLOCK_TOKENS);
    while (table.completeBlocks < reusable) {
      const block = this.#prefixes.get(this.#key(table, tokenIds));
      if (block === undefined) break;
      table.blocks.push(block);
      table.lastIdentity = String(this.#blocks[block]!.identity);
      table.identities.push(table.lastIdentity);
      table.completeBlocks++;
    }
    const wanted = Math.ceil(totalTokens / BLOCK_TOKENS) - table.blocks.length;
    const freeAfterReuse = this.#free.size - table.blocks.filter((block) => this.#free.has(block)).length;
    if (wanted > freeAfterReuse) return null;
    for (const block of table.blocks) this.#use(block);
    for (let i = 0; i < wanted; i++) table.blocks.push(this.#takeFree());
    return { table, cachedTokens: table.completeBlocks * BLOCK_TOKENS };
  }

  /** Tells that the first `computedTokens` of `tokenIds` stand in the cache, so that others may reuse them. */
  commit(table: BlockTable, tokenIds: readonly number[], computedTokens: number): void {
    while ((table.completeBlocks + 1) * BLOCK_TOKENS <= computedTokens) {
      const key = this.#key(table, tokenIds);
      const index = table.blocks[table.completeBlocks]!;
      const existing = this.#prefixes.get(key);
      if (existing === undefined) {
        const block = this.#blocks[index]!;
        block.identity = ++this.#lastIdentity;
        block.key = key;
        this.#prefixes.set(key, index);
        table.lastIdentity = String(block.identity);
      } else {
        table.lastIdentity = String(this.#blocks[existing]!.identity);
      }
      table.identities.push(table.lastIdentity);
      table.completeBlocks++;
    }
  }

  /** Gives the blocks back; their content stays findable until the room is needed. Later blocks are reused for other content first. */
  release(table: BlockTable): void {
    for (const index of table.blocks.splice(0).reverse()) {
      const block = this.#blocks[index]!;
      block.users--;
      if (block.users === 0) this.#free.add(index);
    }
  }

  /** Copies the tokens [start, start + count) of a sequence out of a pool, to where `outside` keeps them. */
  read(table: BlockTable, pool: Float32Array, start: number, count: number, outside: HeadRows): void {
    this.#eachRun(table, start, count, outside, (at, from, values) => copyValues(pool, at, outside.data, from, values));
  }

  /** Copies tokens from `outside` into a pool, as those at [start, start + count) of a sequence. */
  write(table: BlockTable, pool: Float32Array, start: number, count: number, outside: HeadRows): void {
    this.#eachRun(table, start, count, outside, (at, from, values) => copyValues(outside.data, from, pool, at, values));
  }

  /** Gives a sequence the tokens [start, end) of another one that begins with the same tokens under the same policy. */
  share(from: BlockTable, to: BlockTable, start: number, end: number): void {
    const size = this.#headSize;
    for (let position = start; position < end; ) {
      const inBlock = position % BLOCK_TOKENS;
      const tokens = Math.min(BLOCK_TOKENS - inBlock, end - position);
      const at = ({ blocks }: BlockTable, head: number): number =>
        ((blocks[Math.floor(position / BLOCK_TOKENS)]! * this.#kvHeads + head) * BLOCK_TOKENS + inBlock) * size;
      for (const pool of [...this.keys, ...this.values]) {
        for (let head = 0; head < this.#kvHeads; head++) {
          const source = at(from, head);
          pool.copyWithin(at(to, head), source, source + tokens * size);
        }
      }
      position += tokens;
    }
  }

  /** Calls `copy` with offsets into pool and outside data for each head of each block that [start, start + count) touches. */
  #eachRun(
    table: BlockTable,
    start: number,
    count: number,
    { offset, headStride }: HeadRows,
    copy: (poolOffset: number, outsideOffset: number, values: number) => void,
  ): void {
    const size = this.#headSize;
    const end = start + count;
    for (let position = start; position < end; ) {
      const inBlock = position % BLOCK_TOKENS;
      const tokens = Math.min(BLOCK_TOKENS - inBlock, end - position);
      const block = table.blocks[Math.floor(position / BLOCK_TOKENS)]! * this.#kvHeads;
      const outside = offset + (position - start) * size;
      for (let head = 0; head < this.#kvHeads; head++) {
        copy(((block + head) * BLOCK_TOKENS + inBlock) * size, outside + head * headStride, tokens * size);
      }
      position += tokens;
    }
  }

  #key(table: BlockTable, tokenIds: readonly number[]): string {
    const start = table.completeBlocks * BLOCK_TOKENS;
    return `${table.lastIdentity}:${tokenIds.slice(start, start + BLOCK_TOKENS).join()}`;
  }

  #use(index: number): void {
    this.#free.delete(index);
    this.#blocks[index]!.users++;
  }

  #takeFree(): number {
    const index = this.#free.values().next().value!;
    const block = this.#blocks[index]!;
    if (block.key !== null) this.#prefixes.delete(block.key);
    block.key = null;
    block.identity = 0;
    this.#use(index);
    return index;
  }
}
