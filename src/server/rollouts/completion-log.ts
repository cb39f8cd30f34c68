/**
 * The lines that sampled turns and rollouts are kept as in `completions/`. Layer 5.
 * `c <completion id> <choice index> <rollout id or -> <json>`: a turn; `r <rollout id> <json>`: its end; `t <json>`: rollouts that a step
 * trained; `x <rollout id>`: given up; `k <rollout id>`: taken by a client. Ids and logprobs are little-endian arrays in base64, exactly as sampled.
 */
import type { PlainMessage, ToolDefinition } from '../../core/chat.ts';
import { DataError } from '../../core/errors.ts';
import type { CompletionRecord, StoredCompletion } from '../inference/served-model.ts';

/** How a rollout ended. */
export interface RolloutOutcome {
  readonly reward: number;
  readonly metrics: Readonly<Record<string, number | boolean>>;
  readonly metadata: Readonly<Record<string, string | number | boolean | null>>;
  /** Rollouts of one scenario have the same. */
  readonly group: string | null;
  readonly finishedAt: number;
  /** How many turns it has. */
  readonly calls: number;
}

export type LogLine =
  | {
      readonly kind: 'completion';
      readonly completionId: string;
      readonly choiceIndex: number;
      readonly rolloutId: string | null;
      readonly json: string;
    }
  | { readonly kind: 'finished'; readonly rolloutId: string; readonly outcome: RolloutOutcome }
  | { readonly kind: 'trained'; readonly rolloutIds: readonly string[]; readonly step: number }
  | { readonly kind: 'expired' | 'captured'; readonly rolloutId: string };

interface CompletionJson {
  readonly step: number;
  readonly temperature: number;
  readonly finish: CompletionRecord['finishReason'];
  readonly prompt: string;
  readonly tokens: string;
  /** float32, or float64 where that would not be exact. */
  readonly logprobs: string;
  readonly from?: number;
  readonly at?: number;
  readonly seed?: number;
  readonly key?: string;
  readonly messages?: readonly PlainMessage[];
  readonly tools?: readonly ToolDefinition[];
  readonly reply?: PlainMessage;
}

export function formatCompletion({ record, call }: StoredCompletion): string {
  const json: CompletionJson = {
    step: record.policyStep,
    temperature: record.temperature,
    finish: record.finishReason,
    prompt: encodeInts(record.promptIds),
    tokens: encodeInts(record.tokenIds),
    logprobs: encodeFloats(record.logprobs),
    ...(call !== null && {
      from: call.startedAt,
      at: call.sampledAt,
      seed: call.seed,
      key: call.promptKey,
      messages: call.messages,
      ...(call.tools.length > 0 && { tools: call.tools }),
      reply: call.reply,
    }),
  };
  return `c ${record.completionId} ${record.choiceIndex} ${call?.rolloutId ?? '-'} ${JSON.stringify(json)}`;
}

export function formatOutcome(rolloutId: string, outcome: RolloutOutcome): string {
  return `r ${rolloutId} ${JSON.stringify(outcome)}`;
}

export function formatTrained(rolloutIds: readonly string[], step: number): string {
  return `t ${JSON.stringify({ rolloutIds, step })}`;
}

export function formatExpired(rolloutId: string): string {
  return `x ${rolloutId}`;
}

export function formatCaptured(rolloutId: string): string {
  return `k ${rolloutId}`;
}

/** Reads no more of a completion than says which it is. Throws DataError on a line of no kind. */
export function parseLine(text: string): LogLine {
  const [kind, rest] = splitWord(text);
  switch (kind) {
    case 'c': {
      const [completionId, afterId] = splitWord(rest);
      const [choiceIndex, afterIndex] = splitWord(afterId);
      const [rolloutId, json] = splitWord(afterIndex);
      return {
        kind: 'completion',
        completionId,
        choiceIndex: Number(choiceIndex),
        rolloutId: rolloutId === '-' ? null : rolloutId,
        json,
      };
    }
    case 'r': {
      const [rolloutId, json] = splitWord(rest);
      return { kind: 'finished', rolloutId, outcome: JSON.parse(json) as RolloutOutcome };
    }
    case 't':
      return { kind: 'trained', ...(JSON.parse(rest) as { rolloutIds: string[]; step: number }) };
    case 'x':
      return { kind: 'expired', rolloutId: rest };
    case 'k':
      return { kind: 'captured', rolloutId: rest };
    default:
      throw new DataError(`completion log: a line must begin with c, r, t, x or k, got ${text.slice(0, 20)}`);
  }
}

export function parseCompletion(line: Extract<LogLine, { kind: 'completion' }>): StoredCompletion {
  const { completionId, choiceIndex, rolloutId } = line;
  const json = JSON.parse(line.json) as CompletionJson;
  const tokenIds = decodeInts(json.tokens);
  const record: CompletionRecord = {
    completionId,
    choiceIndex,
    policyStep: json.step,
    promptIds: decodeInts(json.prompt),
    tokenIds,
    logprobs: decodeFloats(json.logprobs, tokenIds.length),
    temperature: json.temperature,
    finishReason: json.finish,
  };
  const {
    at: sampledAt = 0,
    from: startedAt = sampledAt,
    seed = 0,
    key: promptKey = '',
    messages = [],
    tools = [],
    reply = { role: 'assistant', content: '' },
  } = json;
  const call = { startedAt, sampledAt, seed, promptKey, messages, tools, reply };
  return { record, call: rolloutId === null ? null : { rolloutId, ...call } };
}

function splitWord(text: string): readonly [word: string, rest: string] {
  const space = text.indexOf(' ');
  return space < 0 ? [text, ''] : [text.slice(0, space), text.slice(space + 1)];
}

function encodeInts(ids: readonly number[]): string {
  return toBase64(Int32Array.from(ids));
}

function decodeInts(text: string): number[] {
  return Array.from(new Int32Array(fromBase64(text)));
}

function encodeFloats(values: readonly number[]): string {
  const single = Float32Array.from(values);
  return toBase64(values.every((value, t) => value === single[t]) ? single : Float64Array.from(values));
}

function decodeFloats(text: string, count: number): number[] {
  const bytes = fromBase64(text);
  return Array.from(bytes.byteLength === 4 * count ? new Float32Array(bytes) : new Float64Array(bytes));
}

function toBase64(values: Int32Array | Float32Array | Float64Array): string {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
}

function fromBase64(text: string): ArrayBuffer {
  const bytes = Buffer.from(text, 'base64');
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer;
}
