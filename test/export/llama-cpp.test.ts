/**
 * Exported files in llama.cpp say what our engine says. `npm run test:export` installs node-llama-cpp outside the repository and names its
 * folder in ART_NODE_LLAMA_CPP; without it these tests are skipped. ART_SMOLLM2 names a SmolLM2-135M-Instruct, a folder or .gguf file.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ExportOptions, exportPolicy } from '../../src/export/index.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { expectClose, type Tolerance, tolerances } from '../tolerance.ts';
import { type Job, llamaFolder, runLlama } from './llama.ts';
import { createTrainedRun, type TrainedRun, type TrainedRunOptions } from './trained-run.ts';

const smolLm2 = process.env.ART_SMOLLM2;
const maxTokens = 96;

const texts = [
  'hello world, the quick brown fox.',
  "I'll say it's 3.14 or 12345, won't I?",
  '  two spaces\tand a tab\n\nand lines \n',
  'café, naïve, 你好, 🚀',
  '<|im_start|>user\nGo left<|im_end|>\n<|im_start|>assistant\n',
];

/** What both models are held to. */
function describeModel(
  name: string,
  createBase: (folder: string) => Promise<string>,
  training: Omit<TrainedRunOptions, 'root' | 'base'>,
  tolerance: Tolerance,
): void {
  describe(name, { timeout: 600_000 }, () => {
    let folder = '';
    let base = '';
    let run: TrainedRun;
    const exportAs = async (
      format: ExportOptions['format'],
      dtype: NonNullable<ExportOptions['dtype']>,
    ): Promise<string> => {
      const out = join(folder, `${format}-${dtype}.gguf`);
      await exportPolicy({ path: join(folder, 'runs'), name: 'agent', format, dtype, out, force: true });
      return out;
    };
    const job = (model: string, lora: string | null = null): Job => ({
      model,
      lora,
      promptIds: run.promptIds,
      continuationIds: run.greedyIds,
      texts: [],
    });

    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'art-llama-'));
      base = await createBase(folder);
      run = await createTrainedRun({ root: join(folder, 'runs'), base, ...training });
    }, 600_000);
    afterAll(() => rm(folder, { recursive: true }));

    test('the adapter changes what the model says', () => {
      expect(run.greedyIds).toHaveLength(training.maxTokens);
      expect(run.greedyIds).not.toEqual(run.baseIds);
    });

    test('merged f32: the same greedy ids, the same logprobs, the same tokens', async () => {
      const [result] = await runLlama([{ ...job(await exportAs('gguf', 'f32')), texts }]);
      expect(result!.greedyIds).toEqual(run.greedyIds);
      expect(result!.argmaxIds).toEqual(run.greedyIds);
      const largest = Math.max(...run.logprobs.map((value, i) => Math.abs(value - result!.logprobs[i]!)));
      console.log(`${name} f32: largest |Δ logprob| ${largest.toPrecision(2)}`);
      expectClose(result!.logprobs, run.logprobs, tolerance);
      const tokenizer = await (await openModel(base)).loadTokenizer();
      expect(result!.textIds).toEqual(texts.map((item) => tokenizer.encode(item)));
    });

    test('adapter beside the base: the same greedy ids, and not those of the base alone', async () => {
      const merged = await exportAs('gguf', 'f32');
      const lora = await exportAs('gguf-lora', 'f32');
      const plain = await exportBase(folder, base);
      const [withAdapter, without, twice] = await runLlama([job(plain, lora), job(plain), job(merged, lora)]);
      expect(withAdapter!.greedyIds).toEqual(run.greedyIds);
      expectClose(withAdapter!.logprobs, run.logprobs, tolerance);
      expect(without!.greedyIds).toEqual(run.baseIds);
      expect(Math.max(...run.logprobs.map((value, i) => Math.abs(value - twice!.logprobs[i]!)))).toBeGreaterThan(0.01);
    });

    test.each(['f16', 'bf16', 'q8_0'] as const)('%s loads, and is near', async (dtype) => {
      const [result] = await runLlama([job(await exportAs('gguf', dtype))]);
      const same = result!.argmaxIds.filter((id, i) => id === run.greedyIds[i]).length;
      const mean =
        run.logprobs.reduce((sum, value, i) => sum + Math.abs(value - result!.logprobs[i]!), 0) / training.maxTokens;
      console.log(
        `${name} ${dtype}: ${same} of ${run.greedyIds.length} likeliest ids equal; mean |Δ logprob| ${mean.toPrecision(2)}`,
      );
      // Rounding of weights decides only between ids that are nearly as likely.
      expect(same).toBeGreaterThanOrEqual(0.9 * run.greedyIds.length);
    });
  });
}

/** The base alone, as an export of an adapter that is zero. */
async function exportBase(folder: string, base: string): Promise<string> {
  const { writeRunFolder } = await import('./run-folder.ts');
  await writeRunFolder({ root: join(folder, 'zero'), base, steps: [0], strength: 0 });
  const out = join(folder, 'base.gguf');
  await exportPolicy({ path: join(folder, 'zero'), name: 'agent', format: 'gguf', dtype: 'f32', out, force: true });
  return out;
}

describe.skipIf(llamaFolder === undefined)('llama.cpp (npm run test:export)', () => {
  const words =
    'the quick brown fox jumps over a lazy dog while one two three four five six cats sleep in their warm box';
  describeModel(
    'starter model (qwen3)',
    async (folder) => {
      const directory = join(folder, 'base');
      const corpus = Array.from({ length: 40 }, () => words);
      await writeStarterModel({
        seed: 3,
        directory,
        corpus,
        width: 64,
        layers: 3,
        heads: 4,
        kvHeads: 2,
        headSize: 32,
        ffWidth: 96,
      });
      return directory;
    },
    {
      conversations: [
        ['Go on', words],
        ['Again', words.split(' ').reverse().join(' ')],
      ],
      updates: 60,
      learningRate: 1e-2,
      maxTokens,
    },
    tolerances.logits,
  );

  describe.skipIf(smolLm2 === undefined)('real (ART_SMOLLM2)', () => {
    const training = {
      conversations: [
        ['What is the capital of France?', "Arr, matey! The capital o' France be Paris, a fine port o' call."],
        ['Name a colour.', "Arr, matey! Blue be the colour o' the sea."],
      ] as const,
      updates: 6,
      learningRate: 2e-3,
      maxTokens,
    };
    // 30 layers add up what two orders of summation differ by: 1.7e-4 in the logprobs.
    describeModel('SmolLM2-135M-Instruct (llama)', async () => smolLm2!, training, { rtol: 1e-4, atol: 1e-3 });
  });
});
