/**
 * Supervised fine-tuning from a JSONL file of any size. Layer 5. In memory are 8 bytes for each row and the rows of one chunk.
 * A first pass checks every row and notes where it begins; then each epoch visits the rows in an order of its own, a chunk at a time, and
 * each chunk is a policy step. Order, rates and idempotency keys follow from the file's content and the options, so that a run that was
 * cut off and is started again goes on with the first chunk that has no step.
 */
import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import { AbortedError, ConfigError, DataError } from '../core/errors.ts';
import { isJsonObject } from '../core/json.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { createRng } from '../core/rng.ts';
import { defaultSftConfig, type ScheduleSpan } from '../core/sft-config.ts';
import type { TrainProgress } from '../wire/training.ts';
import type { TrainResult } from './backend.ts';
import type { TrainableModel } from './model.ts';
import { checkConversation, encodeSftOptions, type SftConversation, type SftOptions } from './sft.ts';
import { readRows, type SftFileRow } from './sft-rows.ts';

export interface SftFileOptions extends Omit<SftOptions, 'checkpointEvery' | 'scheduleSpan'> {
  /** Rows of one policy step, rounded up to whole batches; default 1,000. */
  readonly chunkSize?: number;
  /** Fields beside `messages` and `tools` that rows may have and that are not read; any other is refused. Default none. */
  readonly ignoreFields?: readonly string[];
}

export interface SftFileProgress {
  /** `scan`: rows are checked; `train`: a chunk is trained, or was already. */
  readonly stage: 'scan' | 'train';
  readonly rows: number;
  /** Rows of all epochs; null while the file is scanned. */
  readonly totalRows: number | null;
  readonly epoch: number;
  readonly chunk: number;
  /** Of the chunk that trains. */
  readonly train: TrainProgress | null;
}

export interface SftFileCallOptions {
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: SftFileProgress) => void) | undefined;
  /**
   * The same file with the same options trains once for each key. Default: one key, so that running a program again goes on where it
   * stopped, and does nothing where it had finished.
   */
  readonly idempotencyKey?: string | undefined;
}

export interface SftFileResult {
  /** The newest step of this file. */
  readonly step: number;
  readonly rows: number;
  /** Policy steps that the file is in all, and how many of them an earlier call had made. */
  readonly chunks: number;
  readonly chunksBefore: number;
  /** Rows longer than the model's context, which are not learned. */
  readonly droppedRows: number;
  /** Of the last chunk. */
  readonly metrics: TrainResult['metrics'];
}

/**
 * Trains on a file: one JSON object a line with `messages`, whose last is the assistant's, and optionally `tools`. Throws DataError
 * `<file>:<line>: …` for a row that is neither, before anything trains; AbortedError when the signal fires.
 */
export async function trainSftFromFile(
  model: TrainableModel,
  path: string,
  options: SftFileOptions = {},
  call: SftFileCallOptions = {},
): Promise<SftFileResult> {
  const { chunkSize = 1000, ignoreFields = [], ...sft } = options;
  refuseUnknownKeys('trainSftFromFile', call, ['signal', 'onProgress', 'idempotencyKey']);
  requireIntegers('trainSftFromFile', { chunkSize }, 1);
  for (const name of ['checkpointEvery', 'scheduleSpan']) {
    if (name in sft) throw new ConfigError(`trainSftFromFile: ${name} must be left out; chunkSize decides the steps`);
  }
  const wire = encodeSftOptions(sft, 'trainSftFromFile options');
  const backend = model.backend();
  const file = await openFile(path);
  try {
    const scanned = await scan(file, path, ignoreFields, call);
    const chunks = planChunks(scanned, chunkSize, sft, [wire, call.idempotencyKey ?? '']);
    const jobs = await backend.listJobs({ model: model.name, state: 'done', signal: call.signal });
    const results = new Map(
      jobs.flatMap((job) => ('idempotencyKey' in job ? [[job.idempotencyKey, job.result] as const] : [])),
    );
    const chunksBefore = chunks.filter(({ idempotencyKey }) => results.get(idempotencyKey) != null).length;
    let result: Pick<TrainResult, 'step' | 'metrics'> | null = null;
    let droppedRows = 0;
    const report = (chunk: FileChunk, rows: number, train: TrainProgress | null): void => {
      const { epoch, index } = chunk;
      call.onProgress?.({ stage: 'train', rows, totalRows: chunks.at(-1)!.to, epoch, chunk: index, train });
    };
    for (const chunk of chunks) {
      if (call.signal?.aborted) throw stoppedError(call.signal, path);
      const { idempotencyKey, scheduleSpan } = chunk;
      result =
        results.get(idempotencyKey) ??
        (await backend.trainSft(
          model,
          await readConversations(file, path, scanned, chunk.rows(), ignoreFields),
          { ...sft, epochs: 1, scheduleSpan },
          { idempotencyKey, signal: call.signal, onProgress: (train) => report(chunk, chunk.from, train) },
        ));
      if (chunk.epoch === 0) droppedRows += result.metrics['data/step_num_dropped_conversations'] ?? 0;
      report(chunk, chunk.to, null);
    }
    const { step, metrics } = result!;
    return { step, metrics, rows: scanned.starts.length, chunks: chunks.length, chunksBefore, droppedRows };
  } finally {
    await file.close();
  }
}

interface FileChunk {
  readonly epoch: number;
  /** In its epoch. */
  readonly index: number;
  /** Rows of all epochs before it, and with it. */
  readonly from: number;
  readonly to: number;
  readonly scheduleSpan: ScheduleSpan;
  readonly idempotencyKey: string;
  /** Which rows, in order. */
  readonly rows: () => Uint32Array;
}

/** All chunks of all epochs. Only whole batches are cut off, so that every update but the last of an epoch is full. */
function planChunks(
  { starts, sha256 }: Scan,
  rowsPerStep: number,
  options: SftOptions,
  identity: readonly unknown[],
): FileChunk[] {
  const { epochs, batchSize, seed } = { ...defaultSftConfig, ...options };
  const count = starts.length;
  const size = Math.ceil(rowsPerStep / batchSize) * batchSize;
  const updates = Math.ceil(count / batchSize);
  const name = createHash('sha256')
    .update(JSON.stringify([sha256, size, ...identity]))
    .digest('hex')
    .slice(0, 32);
  return Array.from({ length: epochs }, (_, epoch) => {
    let order: Uint32Array | null = null; // made when the epoch begins, dropped with its chunks
    return Array.from({ length: Math.ceil(count / size) }, (_, index): FileChunk => {
      const [from, to] = [index * size, Math.min(count, (index + 1) * size)];
      return {
        ...{ epoch, index, from: epoch * count + from, to: epoch * count + to },
        scheduleSpan: { done: epoch * updates + from / batchSize, total: epochs * updates },
        idempotencyKey: `sft-file-${name}-${epoch}-${index}`,
        rows: () => {
          order ??= shuffledIndices(count, seed, epoch);
          const rows = order.slice(from, to);
          if (to === count) order = null;
          return rows;
        },
      };
    });
  }).flat();
}

/** The conversations of a JSONL file, checked as `trainSftFromFile` checks them, one row at a time. */
export async function* iterateSftFile(
  path: string,
  { ignoreFields = [] }: Pick<SftFileOptions, 'ignoreFields'> = {},
): AsyncGenerator<SftConversation, void> {
  const file = await openFile(path);
  try {
    for await (const row of readRows(file, path)) yield parseRow(row, path, ignoreFields);
  } finally {
    await file.close();
  }
}

async function openFile(path: string): Promise<FileHandle> {
  try {
    return await open(path);
  } catch (cause) {
    throw new DataError(`${path}: must be a file that can be read`, { cause });
  }
}

interface Scan {
  /** Where each row begins, bytes. */
  readonly starts: Float64Array;
  readonly sha256: string;
  /** Size and time of the file as it was read. */
  readonly version: string;
}

async function versionOf(file: FileHandle): Promise<string> {
  const { size, mtimeMs } = await file.stat();
  return `${size} bytes of ${new Date(mtimeMs).toISOString()}`;
}

async function scan(
  file: FileHandle,
  path: string,
  ignoreFields: readonly string[],
  { signal, onProgress }: SftFileCallOptions,
): Promise<Scan> {
  const hash = createHash('sha256');
  const version = await versionOf(file);
  let starts = new Float64Array(1024);
  let rows = 0;
  for await (const row of readRows(file, path)) {
    if (signal?.aborted) throw stoppedError(signal, path);
    parseRow(row, path, ignoreFields);
    hash.update(row.bytes).update('\n');
    if (rows === starts.length) {
      const larger = new Float64Array(2 * rows);
      larger.set(starts);
      starts = larger;
    }
    starts[rows++] = row.start;
    if (rows % 1000 === 0) onProgress?.({ stage: 'scan', rows, totalRows: null, epoch: 0, chunk: 0, train: null });
  }
  if (rows === 0) throw new DataError(`${path}: must have at least one row, got none`);
  return { starts: starts.subarray(0, rows), sha256: hash.digest('hex'), version };
}

function parseRow({ bytes, line }: SftFileRow, path: string, ignoreFields: readonly string[]): SftConversation {
  const where = `${path}:${line}`;
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (cause) {
    throw new DataError(`${where}: must be a JSON object, got ${JSON.stringify(bytes.toString('utf8', 0, 80))}`, {
      cause,
    });
  }
  const known = isJsonObject(value)
    ? Object.fromEntries(Object.entries(value).filter(([name]) => !ignoreFields.includes(name)))
    : value;
  const row = checkConversation(known, where) as SftConversation;
  const last = row.messages.at(-1)?.role;
  if (last !== 'assistant') throw new DataError(`${where}: the last message must be the assistant's, got ${last}`);
  return row;
}

async function readConversations(
  file: FileHandle,
  path: string,
  { starts, version }: Scan,
  indices: Uint32Array,
  ignoreFields: readonly string[],
): Promise<SftConversation[]> {
  const now = await versionOf(file);
  if (now !== version)
    throw new DataError(`${path}: must stay as it is while it is trained on, got ${now} after ${version}`);
  const conversations: SftConversation[] = [];
  for (const index of indices) {
    const { value: row } = await readRows(file, path, starts[index]!, index).next();
    if (row === undefined) throw new DataError(`${path}: must stay as it is while it is trained on, but is shorter`);
    conversations.push(parseRow(row, path, ignoreFields));
  }
  return conversations;
}

/** As `shuffle`, of numbers in typed memory. */
function shuffledIndices(count: number, seed: number, epoch: number): Uint32Array {
  const indices = Uint32Array.from({ length: count }, (_, index) => index);
  const rng = createRng(seed, 'sft-file-order', epoch);
  for (let i = count - 1; i > 0; i--) {
    const j = rng.integer(i + 1);
    [indices[i], indices[j]] = [indices[j]!, indices[i]!];
  }
  return indices;
}

function stoppedError({ reason }: AbortSignal, path: string): AbortedError {
  return new AbortedError(`training on ${path}: stopped by its caller`, { cause: reason });
}
