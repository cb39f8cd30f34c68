/**
 * An append-only log of checksummed lines in numbered segments, of bounded size: the oldest segments are dropped. Layer 5.
 * A line is `<CRC-32 of the text, hex> <text>`. Appending is one write, which outlives this process; `sync` makes it outlive the computer,
 * one flush for all who ask meanwhile. What a crash left half-written at the end is cut off, a damaged line elsewhere is left out.
 */
import { closeSync, fdatasync, ftruncateSync, openSync, readSync, writeSync } from 'node:fs';
import { mkdir, open, readdir, readFile, rm, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { crc32 } from 'node:zlib';
import { ConfigError, messageOf } from '../../core/errors.ts';
import { toStorageError } from '../../formats/atomic-files.ts';

export interface LineLogOptions {
  readonly directory: string;
  /** Of all segments together. */
  readonly maxBytes: number;
  /** A segment ends with the line that passes this; default an eighth of `maxBytes`, at most 16 MiB. */
  readonly segmentBytes?: number;
  readonly onWarning: (message: string) => void;
  /** All lines of this segment are gone. */
  readonly onDrop: (segment: number) => void;
}

/** Where a line is. */
export interface LineAddress {
  readonly segment: number;
  readonly offset: number;
  /** Its checksum and newline included. */
  readonly bytes: number;
}

export interface LineLog {
  /** `text` is one line. Throws the system's error if it cannot be written; the log is then as before. */
  readonly append: (text: string) => LineAddress;
  /** Null if its segment was dropped or the line is damaged. */
  readonly read: (address: LineAddress) => string | null;
  /** Resolves when all that was appended before is on the disk. Throws StorageError. */
  readonly sync: () => Promise<void>;
  readonly close: () => Promise<void>;
}

const mebibyte = 2 ** 20;
/** Lines that nobody waits for are flushed together. */
const flushIntervalMs = 1000;
const checksumBytes = 9;
const newline = 0x0a;
const flushFile = promisify(fdatasync);

/** Opens or begins a log; `onLine` gets every intact line, oldest first. */
export async function openLineLog(
  options: LineLogOptions,
  onLine: (text: string, address: LineAddress) => void,
): Promise<LineLog> {
  const { directory, maxBytes } = options;
  if (!Number.isSafeInteger(maxBytes) || maxBytes < 1) {
    throw new ConfigError(`log ${directory}: maxBytes must be a positive integer, got ${maxBytes}`);
  }
  await mkdir(directory, { recursive: true }).catch(async (error) => {
    throw await toStorageError(directory, error);
  });
  const segments = (await readdir(directory))
    .flatMap((name) => (/^\d{6,}\.log$/.test(name) ? [Number.parseInt(name, 10)] : []))
    .sort((a, b) => a - b);
  const sizes = new Map<number, number>();
  for (const segment of segments)
    sizes.set(segment, await readSegment(options, segment, segment === segments.at(-1), onLine));
  return new SegmentedLog(options, sizes);
}

function pathOf(directory: string, segment: number): string {
  return join(directory, `${String(segment).padStart(6, '0')}.log`);
}

/** Tells the intact lines of a segment; returns its size. */
async function readSegment(
  { directory, onWarning }: LineLogOptions,
  segment: number,
  isLast: boolean,
  onLine: (text: string, address: LineAddress) => void,
): Promise<number> {
  const path = pathOf(directory, segment);
  const content = await readFile(path);
  const wholeBytes = content.lastIndexOf(newline) + 1;
  if (isLast && wholeBytes < content.length) await truncate(path, wholeBytes);
  let damaged = 0;
  for (let offset = 0; offset < wholeBytes; ) {
    const end = content.indexOf(newline, offset) + 1;
    const text = checkLine(content.subarray(offset, end));
    if (text === null) damaged += 1;
    else onLine(text, { segment, offset, bytes: end - offset });
    offset = end;
  }
  if (damaged > 0) onWarning(`${path}: ${damaged} damaged lines are left out`);
  return isLast ? wholeBytes : content.length;
}

/** The text of a line with its newline, if the checksum is right. */
function checkLine(line: Buffer): string | null {
  if (line.length <= checksumBytes || line.at(-1) !== newline) return null;
  const text = line.subarray(checksumBytes, -1);
  return line.toString('latin1', 0, checksumBytes) === checksumOf(text) ? text.toString('utf8') : null;
}

function checksumOf(text: Buffer): string {
  return `${crc32(text).toString(16).padStart(8, '0')} `;
}

class SegmentedLog implements LineLog {
  readonly #options: LineLogOptions;
  readonly #segmentBytes: number;
  readonly #sizes: Map<number, number>;
  readonly #readers = new Map<number, number>();
  #current: number;
  #file: number;
  /** Files with lines that are not flushed yet; those but the newest are closed afterwards. */
  #unflushed = new Set<number>();
  #isFolderFlushed = false;
  #flushing: Promise<void> | null = null;
  #nextFlush: Promise<void> | null = null;
  #timer: NodeJS.Timeout | null = null;

  constructor(options: LineLogOptions, sizes: Map<number, number>) {
    this.#options = options;
    this.#segmentBytes = options.segmentBytes ?? Math.min(16 * mebibyte, Math.ceil(options.maxBytes / 8));
    this.#sizes = sizes;
    this.#current = [...sizes.keys()].at(-1) ?? 1;
    if (!sizes.has(this.#current)) sizes.set(this.#current, 0);
    this.#file = openSync(pathOf(options.directory, this.#current), 'a');
  }

  append(text: string): LineAddress {
    const body = Buffer.from(`${' '.repeat(checksumBytes)}${text}\n`, 'utf8');
    body.write(checksumOf(body.subarray(checksumBytes, -1)), 0, 'latin1');
    if (this.#sizes.get(this.#current)! >= this.#segmentBytes) this.#startSegment();
    const offset = this.#sizes.get(this.#current)!;
    try {
      for (let written = 0; written < body.length; ) written += writeSync(this.#file, body, written);
    } catch (error) {
      ftruncateSync(this.#file, offset);
      throw error;
    }
    this.#sizes.set(this.#current, offset + body.length);
    this.#unflushed.add(this.#file);
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.sync().catch((error: unknown) => this.#options.onWarning(`log: could not be flushed: ${messageOf(error)}`));
    }, flushIntervalMs).unref();
    return { segment: this.#current, offset, bytes: body.length };
  }

  read({ segment, offset, bytes }: LineAddress): string | null {
    if (!this.#sizes.has(segment)) return null;
    let file = this.#readers.get(segment);
    if (file === undefined) {
      file = openSync(pathOf(this.#options.directory, segment), 'r');
      this.#readers.set(segment, file);
    }
    const line = Buffer.allocUnsafe(bytes);
    return readSync(file, line, 0, bytes, offset) === bytes ? checkLine(line) : null;
  }

  sync(): Promise<void> {
    if (this.#unflushed.size === 0) return this.#flushing ?? Promise.resolve();
    this.#nextFlush ??= (async () => {
      await this.#flushing?.catch(() => undefined);
      this.#nextFlush = null;
      this.#flushing = this.#flush().finally(() => {
        this.#flushing = null;
      });
      await this.#flushing;
    })();
    return this.#nextFlush;
  }

  async close(): Promise<void> {
    if (this.#timer !== null) clearTimeout(this.#timer);
    try {
      await this.sync();
    } finally {
      for (const file of new Set([...this.#unflushed, ...this.#readers.values(), this.#file])) closeSync(file);
    }
  }

  async #flush(): Promise<void> {
    const { directory } = this.#options;
    const files = this.#unflushed;
    this.#unflushed = new Set();
    try {
      for (const file of files) {
        await flushFile(file);
        files.delete(file);
        if (file !== this.#file && !this.#unflushed.has(file)) closeSync(file);
      }
      if (this.#isFolderFlushed || process.platform === 'win32') return;
      const folder = await open(directory, 'r');
      await folder.sync().finally(() => folder.close());
      this.#isFolderFlushed = true;
    } catch (error) {
      for (const file of files) this.#unflushed.add(file);
      throw await toStorageError(directory, error);
    }
  }

  #startSegment(): void {
    const next = this.#current + 1;
    const file = openSync(pathOf(this.#options.directory, next), 'a');
    this.#unflushed.add(this.#file); // The next flush closes it.
    this.#file = file;
    this.#current = next;
    this.#isFolderFlushed = false;
    this.#sizes.set(next, 0);
    let total = [...this.#sizes.values()].reduce((sum, bytes) => sum + bytes, 0);
    for (const [segment, bytes] of this.#sizes) {
      if (total <= this.#options.maxBytes - this.#segmentBytes || segment === next) break;
      total -= bytes;
      this.#drop(segment);
    }
  }

  #drop(segment: number): void {
    const { directory, onDrop, onWarning } = this.#options;
    this.#sizes.delete(segment);
    const reader = this.#readers.get(segment);
    if (reader !== undefined) closeSync(reader);
    this.#readers.delete(segment);
    rm(pathOf(directory, segment), { force: true }).catch((error: unknown) => {
      onWarning(`${pathOf(directory, segment)}: could not be removed: ${messageOf(error)}`);
    });
    onDrop(segment);
  }
}
