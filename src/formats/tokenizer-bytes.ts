/**
 * Bytes as printable characters, the form in which ByteLevel vocabularies are written. Layer 1.
 * Source: openai/gpt-2 encoder.py, bytes_to_unicode.
 */

/** GPT-2's printable stand-in of each byte. */
export const symbolOfByte: readonly string[] = Array.from({ length: 256 }, (_, byte) => byte).map(
  (byte, _index, bytes) => {
    const isPrintable = (b: number): boolean => (b >= 33 && b <= 126) || (b >= 161 && b !== 173);
    if (isPrintable(byte)) return String.fromCharCode(byte);
    return String.fromCharCode(256 + bytes.filter((b) => b < byte && !isPrintable(b)).length);
  },
);

const byteOfSymbol: ReadonlyMap<string, number> = new Map(symbolOfByte.map((symbol, byte) => [symbol, byte]));

/** Bytes of a token; one with a character that is no stand-in is its own UTF-8, as in Rust. */
export function bytesOfSymbols(token: string): Uint8Array {
  const bytes: number[] = [];
  for (const symbol of token) {
    const byte = byteOfSymbol.get(symbol);
    if (byte === undefined) return new TextEncoder().encode(token);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}
