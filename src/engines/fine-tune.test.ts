import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createTinyModelFolder } from '../../test/tiny-model-folder.ts';
import { AbortedError, ConfigError, DataError } from '../core/errors.ts';
import type { ChatMessage } from '../core/trajectory.ts';
import { createChatTemplate } from '../formats/chat-template.ts';
import { readModelTensors } from '../formats/safetensors.ts';
import { loadTokenizer } from '../formats/tokenizer.ts';
import { collect, sampleRequest } from './contract-subject.ts';
import { createEmbeddedEngine } from './embedded/engine.ts';
import { encodeConversation, type FineTuneOptions, type FineTuneProgress, fineTuneModel } from './fine-tune.ts';

const model = await createTinyModelFolder();
afterAll(model.remove);
const tokenizer = await loadTokenizer(model.modelDirectory);
const template = createChatTemplate(tokenizer.config);

const user = (content: string): ChatMessage => ({ role: 'user', content });
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content });

describe('encodeConversation', () => {
  const messages: readonly ChatMessage[] = [
    { role: 'system', content: 'Be short.' },
    user('yes?'),
    assistant('yes no'),
    user('no?'),
    assistant('no'),
    user('left over'),
  ];

  test('the ids are those that sampling sees, turn by turn', () => {
    // As the server serves it: the whole prompt once, then what was sampled, then the suffix of each further turn.
    const ids = tokenizer.encode(template.render({ messages: messages.slice(0, 2), addGenerationPrompt: true }));
    ids.push(...tokenizer.encode('yes no'), tokenizer.eosId!);
    ids.push(...tokenizer.encode(template.renderSuffix(messages.slice(0, 3), messages.slice(0, 4))!));
    ids.push(...tokenizer.encode('no'), tokenizer.eosId!);
    const datum = encodeConversation(messages, 0, tokenizer, template, 0);
    expect(datum.tokenIds).toEqual(ids);
    expect(tokenizer.decode(datum.tokenIds)).toBe(
      '<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\nyes no<|im_end|>' +
        '\n<|im_start|>user\nno?<|im_end|>\n<|im_start|>assistant\nno<|im_end|>',
    );
  });

  test('the loss sees the replies, each with its end of turn', () => {
    const { tokenIds, actionMask, ...rest } = encodeConversation(messages, 0, tokenizer, template, 0);
    const seen = tokenIds.filter((_, t) => actionMask[t] === 1);
    expect(tokenizer.decode(seen)).toBe('yes no<|im_end|>no<|im_end|>');
    expect(rest.tokenWeights).toEqual(actionMask);
    expect(rest.temperatures).toEqual(tokenIds.map(() => 1));
  });

  test('with a prompt weight it sees everything but the first token', () => {
    const { tokenIds, actionMask, tokenWeights } = encodeConversation(messages, 0, tokenizer, template, 0.25);
    expect(actionMask).toEqual(tokenIds.map((_, t) => (t === 0 ? 0 : 1)));
    const replies = encodeConversation(messages, 0, tokenizer, template, 0).actionMask;
    expect(tokenWeights).toEqual(replies.map((reply, t) => (t === 0 ? 0 : reply === 1 ? 1 : 0.25)));
  });

  test('what cannot be encoded is refused with the number of the conversation', () => {
    const encode = (list: readonly ChatMessage[]) => () => encodeConversation(list, 3, tokenizer, template, 0);
    expect(encode([user('a')])).toThrow(new DataError('conversation 3: must hold an assistant message, got none'));
    expect(encode([user('a'), { role: 'assistant', content: null }])).toThrow(
      'conversation 3: the template must only append to what stands before, and replies must be text, got message 1',
    );
  });
});

let runs = 0;
const options = (overrides: Partial<FineTuneOptions> = {}): FineTuneOptions => ({
  modelDirectory: model.modelDirectory,
  outputDirectory: join(model.folder, `tuned-${++runs}`),
  conversations: Array.from({ length: 80 }, (_, i) =>
    i % 2 === 0 ? [user('a'), assistant('yes')] : [user('b'), assistant('no')],
  ),
  promptWeight: 0,
  batchSize: 2,
  learningRate: 0.02,
  warmupSteps: 3,
  weightDecay: 0,
  seed: 1,
  ...overrides,
});

async function bytesOf(directory: string): Promise<Record<string, string>> {
  const names = (await readdir(directory)).sort();
  const entries = names.map(
    async (name) => [name, (await readFile(join(directory, name))).toString('base64')] as const,
  );
  return Object.fromEntries(await Promise.all(entries));
}

test('lowers the loss, writes a whole model that replies as taught, the same bytes for the same seed', async () => {
  const progress: FineTuneProgress[] = [];
  const first = options({ onProgress: (each) => progress.push(each) });
  const second = options();
  const [result] = await Promise.all([fineTuneModel(first), fineTuneModel(second)]);
  expect(progress.map(({ step, steps }) => [step, steps])).toEqual(Array.from({ length: 40 }, (_, i) => [i + 1, 40]));
  // ln V at the start: the model knows nothing.
  expect(progress[0]!.loss).toBeGreaterThan(4);
  expect(result!.finalLoss).toBeLessThan(0.3);
  expect(result).toMatchObject({ finalLoss: progress.at(-1)!.loss, tokens: progress.at(-1)!.tokens });

  const bytes = await bytesOf(first.outputDirectory);
  expect(Object.keys(bytes)).toEqual([
    'config.json',
    'generation_config.json',
    'model.safetensors',
    'tokenizer.json',
    'tokenizer_config.json',
  ]);
  expect(await bytesOf(second.outputDirectory)).toEqual(bytes);
  expect([...(await readModelTensors(first.outputDirectory)).keys()].sort()).toEqual(
    [...(await readModelTensors(model.modelDirectory)).keys()].sort(),
  );

  const engine = await createEmbeddedEngine({
    modelDirectory: first.outputDirectory,
    training: { kind: 'lora', rank: 1, alpha: 1 },
    seed: 1,
  });
  try {
    for (const [question, reply] of [
      ['a', 'yes<|im_end|>'],
      ['b', 'no<|im_end|>'],
    ] as const) {
      const promptIds = tokenizer.encode(template.render({ messages: [user(question)], addGenerationPrompt: true }));
      const stopTokenIds = [tokenizer.eosId!];
      const request = sampleRequest({ promptIds }, { temperature: 0, stopTokenIds });
      expect(tokenizer.decode((await collect(engine, request)).tokenIds)).toBe(reply);
    }
  } finally {
    await engine.close();
  }
});

test.each([
  ['in the middle', 2],
  ['after the last update', 4],
])('an abort %s leaves nothing behind', async (_name, abortAfter) => {
  const abort = new AbortController();
  const before = await readdir(model.folder);
  const aborted = options({
    conversations: options().conversations.slice(0, 8),
    signal: abort.signal,
    onProgress: ({ step }) => {
      if (step === abortAfter) abort.abort();
    },
  });
  await expect(fineTuneModel(aborted)).rejects.toBeInstanceOf(AbortedError);
  expect(await readdir(model.folder)).toEqual(before);
});

test('refuses, before any work, a folder that exists and options out of range', async () => {
  const onProgress = (): never => {
    throw new Error('nothing may be trained');
  };
  const refused = (overrides: Partial<FineTuneOptions>) => fineTuneModel(options({ onProgress, ...overrides }));
  await expect(refused({ outputDirectory: model.modelDirectory })).rejects.toThrow(
    new DataError(`fineTuneModel: outputDirectory must not exist yet, got ${model.modelDirectory}`),
  );
  await expect(refused({ conversations: [] })).rejects.toThrow(DataError);
  await expect(refused({ batchSize: 0 })).rejects.toThrow(
    new ConfigError('fineTuneModel: batchSize must be a whole number ≥ 1, got 0'),
  );
  await expect(refused({ promptWeight: -1 })).rejects.toThrow(ConfigError);
  const long = [user('a'.repeat(200)), assistant('yes')];
  await expect(refused({ conversations: [options().conversations[0]!, long] })).rejects.toThrow(
    /^conversation 1: must have at most 160 tokens, got \d+$/,
  );
});
