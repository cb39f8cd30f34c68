/**
 * Token ids back to text as Hugging Face does it, whole or as a stream. Layer 1.
 * Source: huggingface/tokenizers decoders/ and pre_tokenizers/{byte_level,metaspace}.rs.
 * Left out, and refused by name: decoders that change the end of the text or clean it up.
 */
import { ConfigError } from '../core/errors.ts';
import { bytesOfSymbols } from './tokenizer-bytes.ts';
import type { DecoderPiece } from './tokenizer-json.ts';

/** Turns tokens into text; one is used for one text, and after `flush` it is as new. */
export interface TokenReader {
  readonly push: (token: string) => string;
  readonly flush: () => string;
}

export interface TokenDecoder {
  /** Bytes of one token; those of consecutive tokens join to the UTF-8 of the text, but for a space that is stripped from its start. */
  readonly bytesOf: (token: string) => Uint8Array;
  /**
   * A byte of a `<0xNN>` token that makes no UTF-8 becomes U+FFFD. Rust gives up all bytes of its run then, back to the last token
   * that is not a byte: a `whole` text has that, a stream has given complete characters of the run already.
   */
  readonly createReader: (mode: 'stream' | 'whole') => TokenReader;
}

/** Throws ConfigError if the decoders are not one of the known chains. */
export function createTokenDecoder(pieces: readonly DecoderPiece[], source: string): TokenDecoder {
  const [first] = pieces;
  if (pieces.length === 1 && first?.type === 'ByteLevel') return byteLevelDecoder;
  if (pieces.length === 1 && first?.type === 'Metaspace') {
    return metaspaceDecoder(first.replacement, first.prepend_scheme !== 'never');
  }
  return chainDecoder(parseChain(pieces, source));
}

const byteLevelDecoder: TokenDecoder = {
  bytesOf: bytesOfSymbols,
  createReader: () => {
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    return {
      push: (token) => decoder.decode(bytesOfSymbols(token), { stream: true }),
      flush: () => decoder.decode(),
    };
  },
};

function metaspaceDecoder(replacement: string, isFirstStripped: boolean): TokenDecoder {
  const toText = (token: string): string => token.replaceAll(replacement, ' ');
  return {
    bytesOf: (token) => new TextEncoder().encode(toText(token)),
    createReader: () => {
      let isFirst = isFirstStripped;
      return {
        push: (token) => {
          // All of them in the first token, as in Rust, although encoding prepends one.
          const text = isFirst ? token.replaceAll(replacement, '') : toText(token);
          isFirst = false;
          return text;
        },
        flush: () => {
          isFirst = isFirstStripped;
          return '';
        },
      };
    },
  };
}

interface Chain {
  readonly replace: (token: string) => string;
  readonly hasByteFallback: boolean;
  /** Taken off the start of the text at most `count` times. */
  readonly strip: { readonly content: string; readonly count: number };
}

/** `Replace…, ByteFallback, Fuse, Strip`, in this order, each but the first optional. */
function parseChain(pieces: readonly DecoderPiece[], source: string): Chain {
  const order = ['Replace', 'ByteFallback', 'Fuse', 'Strip'];
  const types = pieces.map((piece) => piece.type);
  const places = types.map((type) => order.indexOf(type));
  const isOrdered = places.every((place, index) => place > (places[index - 1] ?? -1) || (place === 0 && index > 0));
  const isStripFused = !types.includes('Strip') || types.includes('Fuse');
  if (pieces.length === 0 || !isOrdered || !isStripFused) {
    const known = 'ByteLevel, Metaspace or a sequence of Replace, ByteFallback, Fuse and Strip';
    throw new ConfigError(`${source}: decoder must be ${known}, got ${types.length > 0 ? types.join(', ') : 'none'}`);
  }
  const replacements = pieces.filter((piece) => piece.type === 'Replace');
  const strip = pieces.find((piece) => piece.type === 'Strip');
  return {
    replace: (token) =>
      replacements.reduce((text, { pattern, content }) => text.replaceAll(pattern.String, () => content), token),
    hasByteFallback: types.includes('ByteFallback'),
    strip: { content: strip?.content ?? '', count: strip?.start ?? 0 },
  };
}

function chainDecoder(chain: Chain): TokenDecoder {
  return {
    bytesOf: (token) => {
      const text = chain.replace(token);
      const byte = chain.hasByteFallback ? byteOf(text) : null;
      return byte === null ? new TextEncoder().encode(text) : Uint8Array.of(byte);
    },
    createReader: (mode) => {
      let toStrip = chain.strip.count;
      const strip = (text: string): string => {
        let start = 0;
        while (toStrip > 0 && start < text.length) {
          const isStripped = text.startsWith(chain.strip.content, start);
          toStrip = isStripped ? toStrip - 1 : 0;
          if (isStripped) start += chain.strip.content.length;
        }
        return text.slice(start);
      };
      const run = mode === 'stream' ? createByteStream() : createByteRun();
      return {
        push: (token) => {
          const text = chain.replace(token);
          const byte = chain.hasByteFallback ? byteOf(text) : null;
          return strip(byte === null ? run.end() + text : run.push(byte));
        },
        flush: () => {
          const rest = strip(run.end());
          toStrip = chain.strip.count;
          return rest;
        },
      };
    },
  };
}

/** Null if the token does not stand for one byte. Rust's parser of numbers takes a plus sign for its first digit. */
function byteOf(token: string): number | null {
  return /^<0x(?:[0-9a-f]{2}|\+[0-9a-f])>$/i.test(token) ? Number.parseInt(token.slice(3, 5), 16) : null;
}

/** Text of consecutive byte tokens. */
interface ByteRun {
  readonly push: (byte: number) => string;
  readonly end: () => string;
}

function createByteRun(): ByteRun {
  let bytes: number[] = [];
  return {
    push: (byte) => {
      bytes.push(byte);
      return '';
    },
    end: () => {
      const text = decodeStrictly(bytes) ?? '\ufffd'.repeat(bytes.length);
      bytes = [];
      return text;
    },
  };
}

function createByteStream(): ByteRun {
  let pending: number[] = [];
  let isBroken = false;
  return {
    push: (byte) => {
      pending.push(byte);
      if (!isBroken && isUnfinished(pending)) return '';
      const text = isBroken ? null : decodeStrictly(pending);
      isBroken = text === null;
      const given = text ?? '\ufffd'.repeat(pending.length);
      pending = [];
      return given;
    },
    end: () => {
      const given = '\ufffd'.repeat(pending.length);
      pending = [];
      isBroken = false;
      return given;
    },
  };
}

/** Whether more bytes can make a character of these. */
function isUnfinished(bytes: readonly number[]): boolean {
  const [lead = 0, ...rest] = bytes;
  const length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  return bytes.length < length && lead < 0xf5 && rest.every((byte) => byte >= 0x80 && byte < 0xc0);
}

const strictDecoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function decodeStrictly(bytes: readonly number[]): string | null {
  try {
    return strictDecoder.decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}
