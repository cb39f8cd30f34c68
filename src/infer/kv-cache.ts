/**
 * The KV cache: pools of rows owned by JavaScript, handed out in blocks, with reuse of equal prefixes. Layer 3.
 * Row r of a layer's pool holds one token's keys, [K·C], and its values. A block is found again by its policy and all tokens up
 * to its end, so a conversation's next turn and the other rollouts of a group compute only what is new; reuse is bit-exact because a
 * token's keys and values depend on nothing else. Source of the scheme: vLLM's paged attention, as condensed in nano-vllm.
 */
import { ConfigError } from '../core/errors.ts';

/** Tokens of one block. Small, because a partly filled block cannot be shared. */
export const BLOCK_TOKENS = 8;

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
}

/** Holds `capacityTokens` rounded down to whole blocks; memory is taken at construction. Throws ConfigError below one block. */
export class KvCache {
  /** Per layer [rows, K·C]. Row 0 … BLOCK_TOKENS − 1 are never handed out: padding reads them. */
  readonly keys: readonly Float32Array[];
  readonly values: readonly Float32Array[];
  readonly rows: number;
  readonly rowWidth: number;
  readonly #blocks: Block[];
  /** Blocks without users, the longest unused first; their content may still be found. */
  readonly #free = new Set<number>();
  readonly #prefixes = new Map<string, number>();
  #lastIdentity = 0;

  constructor(layers: number, rowWidth: number, capacityTokens: number) {
    const count = Math.floor(capacityTokens / BLOCK_TOKENS) + 1;
    if (count < 2) throw new ConfigError(`cacheTokens: must be at least ${BLOCK_TOKENS}, got ${capacityTokens}`);
    this.rows = count * BLOCK_TOKENS;
    this.rowWidth = rowWidth;
    this.keys = Array.from({ length: layers }, () => new Float32Array(this.rows * rowWidth));
    this.values = Array.from({ length: layers }, () => new Float32Array(this.rows * rowWidth));
    this.#blocks = Array.from({ length: count }, () => ({ users: 0, identity: 0, key: null }));
    for (let block = 1; block < count; block++) this.#free.add(block);
  }

  /** Tokens that could be handed out now. */
  get freeTokens(): number {
    return this.#free.size * BLOCK_TOKENS;
  }

  get capacityTokens(): number {
    return this.rows - BLOCK_TOKENS;
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
    const table: BlockTable = { blocks: [], lastIdentity: `p${policyIdentity}`, completeBlocks: 0 };
    const reusable = Math.floor((tokenIds.length - 1) / BLOCK_TOKENS);
    while (table.completeBlocks < reusable) {
      const block = this.#prefixes.get(this.#key(table, tokenIds));
      if (block === undefined) break;
      table.blocks.push(block);
      table.lastIdentity = String(this.#blocks[block]!.identity);
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

  /** Pool row of the token at `position`; a row of the scratch block beyond the table's end. */
  row(table: BlockTable, position: number): number {
    const block = table.blocks[Math.floor(position / BLOCK_TOKENS)] ?? 0;
    return block * BLOCK_TOKENS + (position % BLOCK_TOKENS);
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
