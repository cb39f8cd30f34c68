/** A served model of the starter tokenizer and a scripted engine, for the tests of this folder. Layer 5, not exported. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createChatTemplate } from '../formats/chat-template.ts';
import { writeStarterModel } from '../formats/starter-model.ts';
import { loadTokenizer, type Tokenizer } from '../formats/tokenizer.ts';
import { createScriptedEngine, type ScriptedEngine, type ScriptedEngineOptions } from '../testing/scripted-engine.ts';
import type { ServedModel } from './inference/served-model.ts';
import { createCompletionStore } from './rollouts/completion-store.ts';

export interface ScriptedModel extends ServedModel {
  readonly engine: ScriptedEngine;
}

/** Tokens for the words that the tests' replies are made of. */
const corpus = Array.from({ length: 20 }, () => 'hello world left right up down café naïve 🙂 stop');

export interface ScriptedModelOptions extends Omit<ScriptedEngineOptions, 'reply' | 'decode'> {
  readonly name?: string;
  /** Default: that of the starter model. */
  readonly chatTemplate?: string;
}

/** `createReply` gets the tokenizer: replies are token ids. */
export async function createScriptedModel(
  createReply: (tokenizer: Tokenizer) => ScriptedEngineOptions['reply'],
  options: ScriptedModelOptions = {},
): Promise<ScriptedModel> {
  const folder = await mkdtemp(join(tmpdir(), 'art-server-'));
  try {
    const directory = join(folder, 'model');
    const maxPositions = options.maxPositions ?? 512;
    const config = await writeStarterModel({
      seed: 1,
      directory,
      corpus,
      width: 16,
      layers: 1,
      heads: 2,
      kvHeads: 1,
      headSize: 8,
      ffWidth: 16,
      maxPositions,
    });
    const tokenizer = await loadTokenizer(directory);
    const decode = (ids: readonly number[]): string => tokenizer.decode(ids);
    const { name = 'm', chatTemplate, ...engineOptions } = options;
    const templateConfig = { ...tokenizer.config, ...(chatTemplate !== undefined && { chat_template: chatTemplate }) };
    const engine = createScriptedEngine({ ...engineOptions, maxPositions, reply: createReply(tokenizer), decode });
    return {
      name,
      project: 'tests',
      engine,
      tokenizer,
      template: createChatTemplate(templateConfig),
      config,
      completions: createCompletionStore(),
      step: () => Math.max(...(options.policySteps ?? [0])),
    };
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Ids of every byte of the text alone: what a policy may sample that its tokenizer would never write. */
export function byteIds(tokenizer: Tokenizer, text: string): number[] {
  return [...text].flatMap((character) => tokenizer.encode(character));
}
