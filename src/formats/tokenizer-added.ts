/**
 * Finds added tokens in a text before it is pre-tokenized. Layer 1.
 * Source: huggingface/tokenizers tokenizer/added_vocabulary.rs: first the tokens that are not normalized, then, in the normalized
 * text between them, the others; each time the leftmost and longest.
 */
import type { AddedToken } from './tokenizer-json.ts';
import type { TextPiece } from './tokenizer-text.ts';
import { toUnicode16 } from './tokenizer-unicode.ts';

/** Splits a text into the ids of added tokens and normalized pieces of text. */
export type SplitAdded = (text: string) => readonly (number | TextPiece)[];

export function createAddedSplit(
  tokens: readonly AddedToken[],
  normalize: ((text: string) => string) | null,
): SplitAdded {
  const given = tokens.filter((token) => token.content !== '');
  const normalized = given.filter((token) => token.isNormalized);
  const findRaw = createFinder(given.filter((token) => !token.isNormalized).map((token) => [token.content, token]));
  const findNormalized = createFinder(
    normalized.map((token) => [normalize === null ? token.content : normalize(token.content), token]),
  );
  return (text) =>
    findRaw({ text, isStart: true }).flatMap((part) =>
      typeof part === 'number'
        ? [part]
        : findNormalized(normalize === null ? part : { ...part, text: normalize(part.text) }),
    );
}

interface Node {
  readonly next: Map<number, Node>;
  token: AddedToken | null;
}

function createFinder(
  patterns: readonly (readonly [string, AddedToken])[],
): (piece: TextPiece) => readonly (number | TextPiece)[] {
  const root: Node = { next: new Map(), token: null };
  for (const [content, token] of patterns) {
    let node = root;
    for (let at = 0; at < content.length; at++) {
      const unit = content.charCodeAt(at);
      const child = node.next.get(unit) ?? { next: new Map(), token: null };
      node.next.set(unit, child);
      node = child;
    }
    if (content !== '') node.token ??= token;
  }
  return ({ text, isStart }) => {
    const parts: (number | TextPiece)[] = [];
    let done = 0;
    const pushText = (end: number): void => {
      if (end > done) parts.push({ text: text.slice(done, end), isStart: isStart && done === 0 });
    };
    for (let at = 0; at < text.length; ) {
      const match = longestAt(root, text, at);
      if (match === null) {
        at++;
        continue;
      }
      const [token, end] = match;
      if (!token.isSingleWord || isWholeWord(text, at, end)) {
        // White space that the previous token took stays with it; what this one takes may still hold further tokens.
        pushText(token.stripsLeft ? Math.max(spaceStart(text, at), done) : at);
        parts.push(token.id);
        done = token.stripsRight ? spaceEnd(text, end) : end;
      }
      at = end;
    }
    pushText(text.length);
    return parts;
  };
}

function longestAt(root: Node, text: string, start: number): readonly [AddedToken, number] | null {
  let best: readonly [AddedToken, number] | null = null;
  let node = root.next.get(text.charCodeAt(start));
  for (let end = start + 1; node !== undefined; end++) {
    if (node.token !== null) best = [node.token, end];
    node = end < text.length ? node.next.get(text.charCodeAt(end)) : undefined;
  }
  return best;
}

const wordAtEnd = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]$/u;
const wordAtStart = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;

function isWholeWord(text: string, start: number, end: number): boolean {
  // Two units are enough for one character.
  const [before, after] = [text.slice(Math.max(start - 2, 0), start), text.slice(end, end + 2)];
  return !wordAtEnd.test(toUnicode16(before)) && !wordAtStart.test(toUnicode16(after));
}

// All white space is in the BMP, so that one unit is one character.
const space = /\p{White_Space}/u;

function spaceStart(text: string, from: number): number {
  let start = from;
  while (start > 0 && space.test(text.charAt(start - 1))) start--;
  return start;
}

function spaceEnd(text: string, from: number): number {
  let end = from;
  while (end < text.length && space.test(text.charAt(end))) end++;
  return end;
}
