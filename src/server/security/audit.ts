/**
 * `<root>/audit.jsonl`: every change to what the server keeps, one a line, flushed before the answer. Layer 5.
 * Each line carries the SHA-256 of the line before it, so that a line changed, removed or put in later breaks the chain. Whoever can
 * write the file can also write a whole new chain or cut its end: keep the last hash elsewhere and give it to `verifyAudit`.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { z } from 'zod';
import { DataError } from '../../core/errors.ts';
import { isMissing, toStorageError } from '../../formats/atomic-files.ts';
import { withFileLock } from '../store/file-lock.ts';
import { type Who, whoSchema } from './caller.ts';

/** What was done, to what, and how that looked before and after; never secrets. */
export interface Change {
  /** Stable name, as in `model.register`, `checkpoint.delete`, `key.create`. */
  readonly what: string;
  /** As in `default/agent-001@12`. */
  readonly target: string;
  readonly before?: unknown;
  readonly after?: unknown;
}

export interface AuditLog {
  /**
   * Resolves when the line is on the disk. `requestId` is null for commands. A line that could not be written, because the disk is full,
   * is written before the next one: the change was made.
   */
  readonly append: (who: Who, change: Change, requestId: string | null) => Promise<void>;
}

const auditLine = z.strictObject({
  seq: z.int().min(1),
  at: z.string(),
  who: whoSchema,
  what: z.string(),
  target: z.string(),
  before: z.unknown(),
  after: z.unknown(),
  request_id: z.string().nullable(),
  prev: z.string().regex(/^[0-9a-f]{64}$/),
});

export interface AuditState {
  readonly lines: number;
  /** SHA-256 of the last line; zeros if there is none. */
  readonly lastHash: string;
}

const noHash = '0'.repeat(64);
const empty: AuditState = { lines: 0, lastHash: noHash };
/** Lines that wait for room on the disk; those beyond are lost. */
const maxPending = 10_000;
/** A longer change is cut down to its hash: the log stays readable line by line. */
const maxLineBytes = 64 * 1024;

export function auditPath(root: string): string {
  return join(root, 'audit.jsonl');
}

/** `redact` sees every text before it is written; `now` gives the time of a line. */
export function createAuditLog(
  root: string,
  redact: (value: unknown) => unknown = (value) => value,
  now: () => Date = () => new Date(),
): AuditLog {
  const path = auditPath(root);
  let pending: readonly LineWriter[] = [];
  return {
    append: async (who, change, requestId) => {
      const { what, target, before = null, after = null } = change;
      const changed = { at: now().toISOString(), who, what, target: redact(target) };
      const write: LineWriter = ({ lines, lastHash }) => {
        const head = { seq: lines + 1, ...changed };
        const tail = { request_id: requestId, prev: lastHash };
        const line = JSON.stringify({ ...head, before: redact(before), after: redact(after), ...tail });
        if (Buffer.byteLength(line) <= maxLineBytes) return line;
        const short = (value: unknown): unknown => ({ sha256: hashLine(JSON.stringify(value)) });
        return JSON.stringify({ ...head, before: short(redact(before)), after: short(redact(after)), ...tail });
      };
      const isQueued = pending.length < maxPending;
      if (isQueued) pending = [...pending, write];
      await withFileLock(path, async () => {
        for (const next of isQueued ? pending : [...pending, write]) {
          await appendLine(path, next);
          pending = pending.filter((other) => other !== next);
        }
      });
    },
  };
}

/** A line of the log, given what stands before it. */
type LineWriter = (state: AuditState) => string;

/** What a crash left of a line that was never acknowledged is cut off first. */
async function appendLine(path: string, format: LineWriter): Promise<void> {
  try {
    const file = await open(path, 'a+', 0o600);
    try {
      const { size } = await file.stat();
      const { state, end } = await readEnd(file, size);
      if (end < size) await file.truncate(end);
      await file.appendFile(`${format(state)}\n`);
      await file.sync();
    } finally {
      await file.close();
    }
  } catch (error) {
    throw await toStorageError(path, error);
  }
}

/** The last whole line, read from the end of the file, and where it ends. */
async function readEnd(
  file: Awaited<ReturnType<typeof open>>,
  size: number,
): Promise<{ readonly state: AuditState; readonly end: number }> {
  for (let wanted = 2 * maxLineBytes; ; wanted *= 2) {
    const from = Math.max(0, size - wanted);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(size - from), 0, size - from, from);
    const tail = buffer.subarray(0, bytesRead);
    const last = tail.lastIndexOf(0x0a);
    if (last < 0 && from === 0) return { state: empty, end: 0 };
    const before = last <= 0 ? -1 : tail.lastIndexOf(0x0a, last - 1);
    if (last < 0 || (before < 0 && from > 0)) continue;
    const line = tail.subarray(before + 1, last).toString('utf8');
    return { state: { lines: readSeq(line), lastHash: hashLine(line) }, end: from + last + 1 };
  }
}

function readSeq(line: string): number {
  try {
    return auditLine.parse(JSON.parse(line)).seq;
  } catch (cause) {
    throw new DataError(
      `audit log: its last line must be a line of this log, got ${line.slice(0, 80)}; art audit verify says more`,
      { cause },
    );
  }
}

/**
 * Checks the whole chain. Throws DataError naming the first line that does not follow from the one before it, and if no line has the
 * hash `expected`, which was noted earlier. An unfinished last line is left out: it was never acknowledged.
 */
export async function verifyAudit(root: string, expected?: string): Promise<AuditState> {
  const path = auditPath(root);
  let state = empty;
  let isFound = expected === undefined || expected === noHash;
  for await (const line of readLines(path)) {
    const number = state.lines + 1;
    const problem = findProblem(line, number, state.lastHash);
    if (problem !== null) throw new DataError(`${path}: line ${number} ${problem}`, { details: { line: number } });
    state = { lines: number, lastHash: hashLine(line) };
    isFound ||= state.lastHash === expected;
  }
  if (!isFound) throw new DataError(`${path}: must have a line with SHA-256 ${expected}, got ${state.lines} others`);
  return state;
}

function findProblem(line: string, number: number, lastHash: string): string | null {
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch {
    return `must be JSON, got ${line.slice(0, 80)}`;
  }
  const parsed = auditLine.safeParse(json);
  if (!parsed.success) return `must be a change: ${z.prettifyError(parsed.error)}`;
  if (parsed.data.seq !== number) return `must have seq ${number}, got ${parsed.data.seq}`;
  if (parsed.data.prev === lastHash) return null;
  return `must carry the hash of the line before it, ${lastHash}, got ${parsed.data.prev}`;
}

/** Whole lines only. */
async function* readLines(path: string): AsyncGenerator<string> {
  const stream = createReadStream(path, 'utf8');
  let ending = '';
  stream.on('data', (chunk) => {
    ending = chunk.slice(-1) as string;
  });
  try {
    let held: string | null = null;
    for await (const line of createInterface({ input: stream, crlfDelay: Number.POSITIVE_INFINITY })) {
      if (held !== null) yield held;
      held = line;
    }
    if (held !== null && ending === '\n') yield held;
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
}

function hashLine(line: string): string {
  return createHash('sha256').update(line).digest('hex');
}
