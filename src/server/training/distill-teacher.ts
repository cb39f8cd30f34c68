/**
 * The teacher of a distillation: a served policy that scores what another sampled. Layer 5.
 * Both must have one vocabulary, id for id. A teacher may read a system message that the policy does not; its ids stand before the rest.
 */
import { ConfigError, EngineError } from '../../core/errors.ts';
import type { Datum, SampleEvent } from '../../engines/engine.ts';
import type { ChatTemplate } from '../../formats/chat-template.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import type { DistillRequest } from '../../wire/distill.ts';
import type { ServedModel } from '../inference/served-model.ts';

export interface Teacher {
  readonly model: Pick<ServedModel, 'name' | 'engine' | 'tokenizer' | 'template' | 'step'>;
  /** Null: the newest. */
  readonly step: number | null;
  /** Ids that stand before each conversation, after the token that begins a text. */
  readonly prefixIds: readonly number[];
}

/** What the teacher says of one sequence: arrays of length T, filled where its action mask is 1. */
export interface TeacherScores {
  /** Logprob of the token that was sampled. */
  readonly logprobs: readonly number[];
  /** Best tokens, best first. */
  readonly topIds: readonly (readonly number[])[];
  readonly topLogprobs: readonly (readonly number[])[];
}

/** Sequences that one engine scores at once: enough to have the next one there when a pass ends. */
const maxConcurrentScores = 4;

/** Throws ConfigError if the vocabularies differ, or the template cannot write the system message in front. */
export function createTeacher(
  request: DistillRequest['teacher'],
  model: Teacher['model'],
  student: Pick<ServedModel, 'name' | 'tokenizer'>,
): Teacher {
  checkSameVocabulary(model, student);
  const { step = null, system_prompt: systemPrompt = null } = request;
  const prefixIds = systemPrompt === null ? [] : prefixOf(systemPrompt, model);
  return { model, step, prefixIds };
}

function checkSameVocabulary(teacher: Teacher['model'], student: Pick<ServedModel, 'name' | 'tokenizer'>): void {
  if (teacher.tokenizer === student.tokenizer) return;
  const names = `teacher ${teacher.name} and model ${student.name}`;
  const [ours, theirs] = [student.tokenizer.vocabSize, teacher.tokenizer.vocabSize];
  if (ours !== theirs) {
    throw new ConfigError(`distill: ${names} must have one vocabulary, got ${theirs} and ${ours} tokens`);
  }
  for (let id = 0; id < ours; id++) {
    const [a, b] = [bytesOf(teacher.tokenizer, id), bytesOf(student.tokenizer, id)];
    if (a?.equals(b ?? unknown) ?? b === null) continue;
    const got = [a, b].map((bytes) => (bytes === null ? 'none' : JSON.stringify(bytes.toString('utf8')))).join(' and ');
    throw new ConfigError(`distill: ${names} must have one vocabulary, got ${got} as token ${id}`);
  }
}

const unknown = Buffer.from('unknown');

/** Null for a gap in the vocabulary. */
function bytesOf(tokenizer: Pick<Tokenizer, 'tokenBytes'>, id: number): Buffer | null {
  try {
    return Buffer.from(tokenizer.tokenBytes(id));
  } catch {
    return null;
  }
}

/** Ids of the text by which a prompt with the system message is longer than one without. */
function prefixOf(systemPrompt: string, { template, tokenizer, name }: Teacher['model']): readonly number[] {
  const user = { role: 'user', content: 'x' } as const;
  const render = (messages: Parameters<ChatTemplate['render']>[0]['messages']): string =>
    template.render({ messages, addGenerationPrompt: true });
  const plain = render([user]);
  const whole = render([{ role: 'system', content: systemPrompt }, user]);
  const begin = tokenizer.bosId === null ? '' : tokenizer.tokenText(tokenizer.bosId);
  const rest = begin !== '' && plain.startsWith(begin) ? plain.slice(begin.length) : plain;
  const from = plain.length - rest.length;
  if (!whole.endsWith(rest) || whole.length <= plain.length || whole.slice(0, from) !== plain.slice(0, from)) {
    throw new ConfigError(
      `distill: the chat template of teacher ${name} must write a system message before the rest, and the rest as without it, got ` +
        JSON.stringify(whole.slice(0, 200)),
    );
  }
  return tokenizer.encode(whole.slice(from, whole.length - rest.length));
}

/** Scores the action tokens of each sequence, with `topK` alternatives; null for one that is too long for the teacher. */
export async function scoreByTeacher(
  { model, step, prefixIds }: Teacher,
  sequences: readonly Datum[],
  topK: number,
  { signal, onScored }: { readonly signal: AbortSignal; readonly onScored: (done: number) => void },
): Promise<(TeacherScores | null)[]> {
  const { maxPositions } = await model.engine.doInfo();
  const scores: (TeacherScores | null)[] = sequences.map(() => null);
  let [next, done] = [0, 0];
  const work = async (): Promise<void> => {
    for (let i = next++; i < sequences.length; i = next++) {
      signal.throwIfAborted();
      const datum = sequences[i]!;
      // A prompt leaves room for one token.
      const isLong = prefixIds.length + datum.tokenIds.length >= maxPositions;
      if (!isLong) scores[i] = await scoreOne(model, step, prefixIds, datum, topK, signal);
      done += 1;
      onScored(done);
    }
  };
  await Promise.all(Array.from({ length: maxConcurrentScores }, work));
  return scores;
}

async function scoreOne(
  model: Teacher['model'],
  step: number | null,
  prefixIds: readonly number[],
  datum: Datum,
  topK: number,
  signal: AbortSignal,
): Promise<TeacherScores> {
  const { tokenIds, actionMask, temperatures } = datum;
  const [first, ...rest] = tokenIds as [number, ...number[]];
  const promptIds = first === model.tokenizer.bosId ? [first, ...prefixIds, ...rest] : [...prefixIds, ...tokenIds];
  const offset = prefixIds.length;
  const scores = { logprobs: tokenIds.map(() => 0), topIds: emptyRows(tokenIds), topLogprobs: emptyRows(tokenIds) };
  const wanted = new Set(temperatures.filter((_, t) => actionMask[t] === 1));
  for (const temperature of wanted) {
    const prompt = await readPrompt(model, promptIds, temperature, step, topK, signal);
    for (const [t, mask] of actionMask.entries()) {
      if (mask !== 1 || temperatures[t] !== temperature) continue;
      scores.logprobs[t] = prompt.logprobs[t + offset]!;
      const top = prompt.topLogprobs?.[t + offset] ?? [];
      scores.topIds[t] = top.map(({ tokenId }) => tokenId);
      scores.topLogprobs[t] = top.map(({ logprob }) => logprob);
    }
  }
  return scores;
}

const emptyRows = (tokenIds: readonly number[]): number[][] => tokenIds.map(() => []);

async function readPrompt(
  { engine, name }: Teacher['model'],
  promptIds: readonly number[],
  temperature: number,
  policyStep: number | null,
  topK: number,
  signal: AbortSignal,
): Promise<Extract<SampleEvent, { type: 'prompt' }>> {
  const sampling = {
    ...{ maxTokens: 1, temperature, topP: 1, topK: 0, seed: 0, stopTokenIds: [], stopStrings: [], topLogprobs: 0 },
  };
  const request = { promptIds, sampling, policyStep, isStreaming: false, promptLogprobs: Math.max(1, topK), signal };
  for await (const event of engine.doSample(request)) if (event.type === 'prompt') return event;
  throw new EngineError(`distill: the engine of teacher ${name} must score a prompt, told nothing of it`);
}
