/**
 * Byte-pair encoding of one word over integer ids, bit-exact with Hugging Face. Layer 1.
 * Source: huggingface/tokenizers models/bpe (model.rs, word.rs), with its order of merges, unknown tokens and byte fallback.
 * A word of n characters costs O(n log n), so that a tokenizer without a pre-tokenizer reads a whole text as one word.
 */
import { DataError } from '../core/errors.ts';
import { bytesOfSymbols } from './tokenizer-bytes.ts';
import type { BpeConfig } from './tokenizer-json.ts';

/** Appends the ids of a word. Throws DataError if a character has no token and no stand-in. */
export type EncodeWord = (word: string, out: number[]) => void;

/** `ids` is the vocabulary without added tokens; with `isByteLevel`, words come in the symbols of bytes. Throws DataError. */
export function createBpe(
  model: BpeConfig,
  ids: ReadonlyMap<string, number>,
  isByteLevel: boolean,
  source: string,
): EncodeWord {
  const merges = readMerges(model.merges, ids, source);
  const unkId = readUnknown(model, ids, source);
  const byteIds = model.byte_fallback ? readByteIds(ids) : null;
  const toSymbols = (word: string): number[] => {
    const symbols: number[] = [];
    let hasUnknown = false;
    for (const character of word) {
      const id = ids.get(character);
      if (id !== undefined) {
        // An unknown token waits for the next known character; tokens of bytes overtake it, as in Rust.
        if (hasUnknown) symbols.push(unkId as number);
        hasUnknown = false;
        symbols.push(id);
        continue;
      }
      const bytes = byteIds === null ? null : byteTokens(character, byteIds);
      if (bytes !== null) symbols.push(...bytes);
      else if (unkId === null) throw missing(character, isByteLevel, source);
      else {
        if (hasUnknown && !model.fuse_unk) symbols.push(unkId);
        hasUnknown = true;
      }
    }
    if (hasUnknown) symbols.push(unkId as number);
    return symbols;
  };
  const cache = new Map<string, readonly number[]>();
  return (word, out) => {
    let encoded = cache.get(word);
    if (encoded === undefined) {
      const whole = model.ignore_merges ? ids.get(word) : undefined;
      encoded = whole === undefined ? mergeAll(toSymbols(word), merges) : [whole];
      if (word.length <= maxCachedLength) {
        if (cache.size >= maxCachedWords) cache.clear();
        cache.set(word, encoded);
      }
    }
    // Not push(...encoded): a word may have more ids than a call may have arguments.
    for (const id of encoded) out.push(id);
  };
}

/** About 10 MB at most; longer words hardly ever come again. */
const maxCachedWords = 20_000;
const maxCachedLength = 64;

function missing(character: string, isByteLevel: boolean, source: string): DataError {
  const byte = isByteLevel ? bytesOfSymbols(character)[0] : undefined;
  const got = byte === undefined ? JSON.stringify(character) : `byte ${byte}`;
  return new DataError(
    `${source}: text must hold only ${byte === undefined ? 'characters' : 'bytes'} with a token, got ${got}`,
  );
}

function readUnknown(model: BpeConfig, ids: ReadonlyMap<string, number>, source: string): number | null {
  const token = model.unk_token ?? null;
  if (token === null) return null;
  const id = ids.get(token);
  if (id === undefined)
    throw new DataError(`${source}: unk_token must be in the vocabulary, got ${JSON.stringify(token)}`);
  return id;
}

function readByteIds(ids: ReadonlyMap<string, number>): readonly (number | undefined)[] {
  return Array.from({ length: 256 }, (_, byte) => ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`));
}

function byteTokens(character: string, byteIds: readonly (number | undefined)[]): number[] | null {
  const tokens: number[] = [];
  for (const byte of new TextEncoder().encode(character)) {
    const id = byteIds[byte];
    if (id === undefined) return null;
    tokens.push(id);
  }
  return tokens;
}

/** Rank of a pair of ids, and the id that it becomes; a hash table with open addressing, as a Map of pairs is 3 times as slow. */
interface Merges {
  /** Rank of the pair, or -1. */
  readonly rankOf: (left: number, right: number) => number;
  readonly newIds: Int32Array;
}

function readMerges(list: readonly unknown[], ids: ReadonlyMap<string, number>, source: string): Merges {
  const lefts = new Int32Array(list.length);
  const rights = new Int32Array(list.length);
  const newIds = new Int32Array(list.length);
  const slotCount = 2 ** Math.ceil(Math.log2(Math.max(list.length, 1) * 2));
  const slots = new Int32Array(slotCount).fill(-1);
  const slotOf = (left: number, right: number): number => {
    let slot = (Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b)) >>> 0;
    slot = (slot ^ (slot >>> 15)) & (slotCount - 1);
    for (let rank = slots[slot]!; rank !== -1; rank = slots[slot]!) {
      if (lefts[rank] === left && rights[rank] === right) break;
      slot = (slot + 1) & (slotCount - 1);
    }
    return slot;
  };
  for (let rank = 0; rank < list.length; rank++) {
    const [left, right] = splitMerge(list[rank]);
    const leftId = ids.get(left);
    const rightId = ids.get(right);
    const newId = ids.get(left + right);
    if (leftId === undefined || rightId === undefined || newId === undefined) {
      const rule = 'must join two tokens of the vocabulary into a third';
      throw new DataError(`${source}: merge ${rank} ${rule}, got ${JSON.stringify(list[rank])}`);
    }
    lefts[rank] = leftId;
    rights[rank] = rightId;
    newIds[rank] = newId;
    slots[slotOf(leftId, rightId)] = rank; // a pair that comes again takes the later rank, as in Rust
  }
  return { rankOf: (left, right) => slots[slotOf(left, right)]!, newIds };
}

/** `"a b"` in files of before 0.20, `["a", "b"]` since; what is neither joins no tokens. */
function splitMerge(merge: unknown): readonly [string, string] {
  if (typeof merge === 'string') {
    const at = merge.indexOf(' ');
    return at > 0 && at === merge.lastIndexOf(' ') ? [merge.slice(0, at), merge.slice(at + 1)] : ['', ''];
  }
  const [left, right] = Array.isArray(merge) && merge.length === 2 ? (merge as readonly unknown[]) : [];
  return typeof left === 'string' && typeof right === 'string' ? [left, right] : ['', ''];
}

/** Merges the pair of lowest rank first, the leftmost of equals. */
function mergeAll(symbols: number[], merges: Merges): number[] {
  const count = symbols.length;
  if (count < 2) return symbols;
  const next = Int32Array.from({ length: count }, (_, place) => (place + 1 < count ? place + 1 : -1));
  const previous = Int32Array.from({ length: count }, (_, place) => place - 1);
  const heap = new MinHeap();
  const offer = (place: number): void => {
    const rank = merges.rankOf(symbols[place]!, symbols[next[place]!]!);
    if (rank !== -1) heap.push(rank * maxPlaces + place);
  };
  for (let place = 0; place + 1 < count; place++) offer(place);
  while (heap.size > 0) {
    const top = heap.pop();
    const place = top % maxPlaces;
    const newId = merges.newIds[(top - place) / maxPlaces]!;
    const right = next[place]!;
    if (right === -1 || symbols[place] === gone) continue;
    const rank = merges.rankOf(symbols[place]!, symbols[right]!);
    if (rank === -1 || merges.newIds[rank] !== newId) continue; // the pair is no longer what was offered
    symbols[place] = newId;
    symbols[right] = gone;
    next[place] = next[right]!;
    if (next[place] !== -1) {
      previous[next[place]!] = place;
      offer(place);
    }
    if (previous[place] !== -1) offer(previous[place]!);
  }
  return symbols.filter((id) => id !== gone);
}

const gone = -1;
/** Rank and place share one number: places below 2^30, ranks below 2^23. */
const maxPlaces = 2 ** 30;

class MinHeap {
  readonly #items: number[] = [];

  get size(): number {
    return this.#items.length;
  }

  push(item: number): void {
    const items = this.#items;
    let at = items.length;
    items.push(item);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (items[parent]! <= item) break;
      items[at] = items[parent]!;
      at = parent;
    }
    items[at] = item;
  }

  pop(): number {
    const items = this.#items;
    const top = items[0]!;
    const last = items.pop()!;
    if (items.length === 0) return top;
    let at = 0;
    for (let child = 1; child < items.length; child = 2 * at + 1) {
      if (child + 1 < items.length && items[child + 1]! < items[child]!) child++;
      if (items[child]! >= last) break;
      items[at] = items[child]!;
      at = child;
    }
    items[at] = last;
    return top;
  }
}
