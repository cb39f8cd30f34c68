/** A run whose newest policy an engine has trained, and what that engine says with it: what an export must say too. */

import { collect, sampleRequest } from '../../src/engines/contract-subject.ts';
import { createEmbeddedEngine } from '../../src/engines/embedded/engine.ts';
import type { Engine } from '../../src/engines/engine.ts';
import { encodeConversation } from '../../src/engines/fine-tune.ts';
import { createChatTemplate } from '../../src/formats/chat-template.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { writeRunFolder } from './run-folder.ts';

export interface TrainedRun {
  readonly promptIds: readonly number[];
  /** What the engine continues the prompt with, greedily, stop tokens not stopping it. */
  readonly greedyIds: readonly number[];
  /** Of these, at temperature 1. */
  readonly logprobs: readonly number[];
  /** The same by the base model without the adapter. */
  readonly baseIds: readonly number[];
}

export interface TrainedRunOptions {
  readonly root: string;
  readonly base: string;
  readonly conversations: readonly (readonly [question: string, answer: string])[];
  readonly updates: number;
  readonly learningRate: number;
  readonly maxTokens: number;
}

/** Trains rank 4 on all linear layers and writes the run as model `agent` of project `default`. */
export async function createTrainedRun(options: TrainedRunOptions): Promise<TrainedRun> {
  const { root, base, conversations, updates, learningRate, maxTokens } = options;
  const model = await openModel(base);
  const tokenizer = await model.loadTokenizer();
  const template = createChatTemplate(model.tokenizerConfig);
  const data = conversations.map(([question, answer], index) => {
    const messages = [{ role: 'user', content: question } as const, { role: 'assistant', content: answer } as const];
    return encodeConversation(messages, index, tokenizer, template, 0);
  });
  const prompt = template.render({
    messages: [{ role: 'user', content: conversations[0]![0] }],
    addGenerationPrompt: true,
  });
  const promptIds = tokenizer.encode(prompt);
  const engine = await createEmbeddedEngine({
    modelDirectory: base,
    training: { kind: 'lora', rank: 4, alpha: 8 },
    seed: 1,
    trainThreads: 2,
    cacheTokens: 2048,
  });
  try {
    const scale = 1 / data.reduce((total, { actionMask }) => total + actionMask.filter((mask) => mask > 0).length, 0);
    const baseIds = await greedy(engine, promptIds, maxTokens);
    for (let update = 0; update < updates; update++) {
      await engine.doForwardBackward({ data, loss: { name: 'crossEntropy' }, scale });
      await engine.doOptimStep({
        learningRate,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weightDecay: 0,
        maxGradNorm: 1,
      });
    }
    await engine.doPublish({ step: 1 });
    await writeRunFolder({ root, base, steps: [1], fill: (_step, directory) => engine.doSave({ directory }) });
    const greedyIds = await greedy(engine, promptIds, maxTokens);
    const tokenIds = [...promptIds, ...greedyIds];
    const source = { kind: 'served', policyStep: 1 } as const;
    const logprobs = (await engine.doLogprobs({ tokenIds, temperature: 1, source })).slice(promptIds.length);
    return { promptIds, greedyIds, logprobs, baseIds };
  } finally {
    await engine.close();
  }
}

async function greedy(engine: Engine, promptIds: readonly number[], maxTokens: number): Promise<readonly number[]> {
  return (await collect(engine, sampleRequest({ promptIds }, { maxTokens, temperature: 0 }))).tokenIds;
}
