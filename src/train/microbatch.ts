/**
 * Lays packed sequences out as the arrays one forward pass reads. Layer 3.
 * A query sees the keys of its own sequence up to itself; positions count from 0 in each sequence; only the places that predict
 * an action token reach the head.
 */
import { DataError } from '../core/errors.ts';
import { maskedScore, minProductRows } from '../graph/bit-exact.ts';
import type { HostTensor } from '../graph/runtime.ts';
import { firstVisibleKey, type LayerKind, type Layers, layerKinds, maskNames } from '../nn/attention-masks.ts';
import { type Placement, packSequences } from './packing.ts';
import { checkTeacher, type TeacherTokens, teacherColumns, teacherFeeds } from './teacher-tokens.ts';

/** What the loss reads of one sequence; the `Datum` of the engine interface has this shape. Arrays of length T. */
export interface TrainingSequence {
  readonly tokenIds: readonly number[];
  readonly actionMask: readonly number[];
  readonly samplingLogprobs: readonly number[];
  readonly advantages: readonly number[];
  readonly temperatures: readonly number[];
  readonly tokenWeights?: readonly number[];
  readonly referenceLogprobs?: readonly number[];
  readonly sequenceLogRatio?: number;
  readonly teacher?: TeacherTokens;
}

/** Columns that a loss reads, [M, 1]; the targets, their rows and temperatures are none of them. */
export const lossColumns = [
  'actions',
  'tokenWeights',
  'samplingLogprobs',
  'advantages',
  'referenceLogprobs',
  'sequenceLogRatios',
  ...teacherColumns,
] as const;
export type ColumnName = (typeof lossColumns)[number];

/** Columns of what a sequence may lack. They are there where all sequences of a microbatch have it. */
export const optionalColumns: readonly {
  readonly name: ColumnName;
  readonly field: keyof TrainingSequence;
  /** Of rows without a place; no loss may become infinite by it, for that times weight 0 is not a number. */
  readonly padding: number;
  readonly read: (sequence: TrainingSequence, position: number) => number | undefined;
}[] = [
  {
    name: 'referenceLogprobs',
    field: 'referenceLogprobs',
    padding: -1e4,
    read: ({ referenceLogprobs }, position) => referenceLogprobs?.[position],
  },
  {
    name: 'sequenceLogRatios',
    field: 'sequenceLogRatio',
    padding: 0,
    read: ({ sequenceLogRatio }) => sequenceLogRatio,
  },
];

/** Token `position` of sequence `index`. */
export interface TokenPlace {
  readonly index: number;
  readonly position: number;
}

export interface Microbatch {
  readonly feeds: Readonly<Record<string, HostTensor>>;
  /** Which token each of the first entries of the M axis is; M may be longer by padding whose `actions` is 0. */
  readonly places: readonly TokenPlace[];
  readonly rows: number;
  readonly tokens: number;
  readonly paddingTokens: number;
}

export interface MicrobatchOptions {
  /** Query heads per kv head: the mask repeats for each. */
  readonly queriesPerKey: number;
  /** Which masks the model reads. */
  readonly layers: Layers;
  readonly headSize: number;
  /** Tokens of one microbatch, padding included. A single longer row still goes alone. */
  readonly maxTokens: number;
  readonly maxPositions: number;
  readonly vocabSize: number;
}

/** Cuts sequences into microbatches. Throws DataError as `checkSequences` does. */
export function createMicrobatches(sequences: readonly TrainingSequence[], options: MicrobatchOptions): Microbatch[] {
  checkSequences(sequences, options);
  const lengths = sequences.map((sequence) => sequence.tokenIds.length);
  const microbatches: Microbatch[] = [];
  for (const { rowLength, rows } of packSequences(lengths, options.headSize)) {
    const rowsPerBatch = Math.max(1, Math.floor(options.maxTokens / rowLength));
    for (let start = 0; start < rows.length; start += rowsPerBatch) {
      microbatches.push(layOut(sequences, rows.slice(start, start + rowsPerBatch), rowLength, options));
    }
  }
  return microbatches;
}

type Limits = Pick<MicrobatchOptions, 'maxPositions' | 'vocabSize'>;

/** Throws DataError on arrays of unequal length, ids outside the vocabulary, and values that are not finite. */
export function checkSequences(sequences: readonly TrainingSequence[], limits: Limits): void {
  for (const [index, sequence] of sequences.entries()) checkSequence(sequence, index, limits);
}

function isTemperature(value: number): boolean {
  return value > 0 && Number.isFinite(value);
}

function checkSequence(sequence: TrainingSequence, index: number, options: Limits): void {
  const { tokenIds, actionMask, samplingLogprobs, advantages, temperatures } = sequence;
  const length = tokenIds.length;
  if (length > options.maxPositions) {
    throw new DataError(`datum ${index}: must have at most ${options.maxPositions} tokens, got ${length}`);
  }
  const { tokenWeights = actionMask, referenceLogprobs = actionMask, sequenceLogRatio = 0 } = sequence;
  for (const [name, values] of Object.entries({
    actionMask,
    samplingLogprobs,
    advantages,
    temperatures,
    tokenWeights,
    referenceLogprobs,
  })) {
    if (values.length !== length) {
      throw new DataError(`datum ${index}: ${name} must have one entry per token (${length}), got ${values.length}`);
    }
  }
  if (!Number.isFinite(sequenceLogRatio)) {
    throw new DataError(`datum ${index}: sequenceLogRatio must be finite, got ${sequenceLogRatio}`);
  }
  if (sequence.teacher !== undefined) checkTeacher(sequence.teacher, sequence, index, options.vocabSize);
  for (let t = 0; t < length; t++) {
    const id = tokenIds[t]!;
    if (!Number.isSafeInteger(id) || id < 0 || id >= options.vocabSize) {
      throw new DataError(`datum ${index}: token ids must be below ${options.vocabSize}, got ${id} at ${t}`);
    }
    if (actionMask[t] === 0) continue;
    if (t === 0 || actionMask[t] !== 1) {
      throw new DataError(
        `datum ${index}: actionMask must be 0 or 1, and 0 on the first token, got ${actionMask[t]} at ${t}`,
      );
    }
    if (!Number.isFinite(samplingLogprobs[t]) || !Number.isFinite(advantages[t]) || !isTemperature(temperatures[t]!)) {
      throw new DataError(
        `datum ${index}: sampling logprob and advantage must be finite and temperature positive, got ` +
          `${samplingLogprobs[t]}, ${advantages[t]} and ${temperatures[t]} at ${t}`,
      );
    }
    for (const [name, values] of [
      ['tokenWeights', tokenWeights] as const,
      ['referenceLogprobs', referenceLogprobs] as const,
    ]) {
      if (!Number.isFinite(values[t])) {
        throw new DataError(`datum ${index}: ${name} must be finite, got ${values[t]} at ${t}`);
      }
    }
  }
}

function layOut(
  sequences: readonly TrainingSequence[],
  rows: readonly (readonly Placement[])[],
  rowLength: number,
  { queriesPerKey, layers }: MicrobatchOptions,
): Microbatch {
  const size = rows.length * rowLength;
  const tokenIds = new BigInt64Array(size);
  const positions = new BigInt64Array(size);
  const places: TokenPlace[] = [];
  const logitRows: number[] = [];
  let tokens = 0;
  for (const [row, placements] of rows.entries()) {
    for (const { index, start, length } of placements) {
      const sequence = sequences[index]!;
      tokens += length;
      for (let t = 0; t < length; t++) {
        const place = row * rowLength + start + t;
        tokenIds[place] = BigInt(sequence.tokenIds[t]!);
        positions[place] = BigInt(t);
        if (sequence.actionMask[t] === 1) {
          places.push({ index, position: t });
          logitRows.push(place - 1);
        }
      }
    }
  }
  const maskShape = [rows.length, 1, queriesPerKey * rowLength, rowLength];
  const masks = layerKinds(layers).map((kind): [string, HostTensor] => {
    const data = attentionMask(rows, rowLength, queriesPerKey, layers, kind);
    return [maskNames[kind], { dtype: 'float32', shape: maskShape, data }];
  });
  return {
    feeds: {
      tokenIds: { dtype: 'int64', shape: [rows.length, rowLength], data: tokenIds },
      positions: { dtype: 'int64', shape: [rows.length, rowLength], data: positions },
      ...Object.fromEntries(masks),
      ...lossFeeds(sequences, places, logitRows),
    },
    places,
    rows: rows.length,
    tokens,
    paddingTokens: size - tokens,
  };
}

/** What the loss reads of these places; padded to two rows, of which those without a place have `actions` 0. */
export function lossFeeds(
  sequences: readonly TrainingSequence[],
  places: readonly TokenPlace[],
  logitRows: readonly number[],
): Record<string, HostTensor> {
  const count = Math.max(minProductRows, places.length);
  const rows = new BigInt64Array(count);
  const targets = new BigInt64Array(count);
  const inverseTemperatures = new Float32Array(count).fill(1);
  const actions = new Float32Array(count);
  const samplingLogprobs = new Float32Array(count);
  const advantages = new Float32Array(count);
  const tokenWeights = new Float32Array(count);
  for (const [i, { index, position }] of places.entries()) {
    const sequence = sequences[index]!;
    rows[i] = BigInt(logitRows[i]!);
    targets[i] = BigInt(sequence.tokenIds[position]!);
    inverseTemperatures[i] = 1 / sequence.temperatures[position]!;
    actions[i] = 1;
    samplingLogprobs[i] = sequence.samplingLogprobs[position]!;
    advantages[i] = sequence.advantages[position]!;
    tokenWeights[i] = sequence.tokenWeights?.[position] ?? 1;
  }
  const optional = optionalColumns.flatMap(({ name, read, padding }) => {
    const values = places.map(({ index, position }) => read(sequences[index]!, position));
    if (values.length === 0 || values.includes(undefined)) return [];
    const padded = new Float32Array(count).fill(padding);
    padded.set(values as number[]);
    return [[name, padded] as const];
  });
  const column = (data: Float32Array | BigInt64Array): HostTensor => ({
    dtype: data instanceof Float32Array ? 'float32' : 'int64',
    shape: [count, 1],
    data,
  });
  return {
    logitRows: { dtype: 'int64', shape: [count], data: rows },
    targets: column(targets),
    inverseTemperatures: column(inverseTemperatures),
    actions: column(actions),
    samplingLogprobs: column(samplingLogprobs),
    advantages: column(advantages),
    tokenWeights: column(tokenWeights),
    ...Object.fromEntries(optional.map(([name, data]) => [name, column(data)])),
    ...teacherFeeds(sequences, places, count),
  };
}

/** [B, 1, G*T, T]: 0 where a query may see a key. Padding sees itself alone, so that no row of the softmax is empty. */
function attentionMask(
  rows: readonly (readonly Placement[])[],
  rowLength: number,
  queriesPerKey: number,
  layers: Layers,
  kind: LayerKind,
): Float32Array {
  const perRow = queriesPerKey * rowLength * rowLength;
  const mask = new Float32Array(rows.length * perRow).fill(maskedScore);
  for (const [row, placements] of rows.entries()) {
    const base = row * perRow;
    let covered = 0;
    for (const { start, length } of placements) {
      for (; covered < start; covered++) mask[base + covered * rowLength + covered] = 0;
      for (let t = 0; t < length; t++) {
        const query = base + (start + t) * rowLength + start;
        mask.fill(0, query + firstVisibleKey(layers, kind, t), query + t + 1);
      }
      covered = start + length;
    }
    for (; covered < rowLength; covered++) mask[base + covered * rowLength + covered] = 0;
    for (let g = 1; g < queriesPerKey; g++)
      mask.copyWithin(base + g * rowLength * rowLength, base, base + rowLength * rowLength);
  }
  return mask;
}
