/**
 * Exports in Python: transformers loads the merged folder, PEFT the adapter, and both say what our engine says. Skipped unless ART_PYTHON
 * names a Python with torch, transformers and PEFT (test/fixtures/generate/requirements.txt).
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ExportOptions, exportPolicy } from '../../src/export/index.ts';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { createTrainedRun, type TrainedRun, type TrainedRunOptions } from './trained-run.ts';

const python = process.env.ART_PYTHON;
const smolLm2 = process.env.ART_SMOLLM2;

interface Answer {
  readonly greedyIds: readonly number[];
  readonly logprobs: readonly number[];
  /** Largest |Δ| of logits between merged folder and base with adapter, relative to the largest logit. */
  readonly logitDifference: number;
  /** Largest |Δ| of weights between merged folder and PEFT's merge_and_unload, relative to the largest weight. */
  readonly weightDifference: number;
}

function describeModel(
  name: string,
  createBase: (folder: string) => Promise<string>,
  training: Omit<TrainedRunOptions, 'root' | 'base'>,
): void {
  describe(name, { timeout: 600_000 }, () => {
    let folder = '';
    let run: TrainedRun;
    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'art-python-'));
      const base = await createBase(folder);
      run = await createTrainedRun({ root: join(folder, 'runs'), base, ...training });
    }, 600_000);
    afterAll(() => rm(folder, { recursive: true }));

    const exportAs = async (
      format: ExportOptions['format'],
      out: string,
      rest: Partial<ExportOptions> = {},
    ): Promise<string> => {
      const path = join(folder, out);
      await exportPolicy({ path: join(folder, 'runs'), name: 'agent', format, out: path, ...rest });
      return path;
    };

    test('the merged folder and the adapter say what the engine says', async () => {
      // Small shards: transformers reads the index.
      const merged = await exportAs('safetensors', 'merged', { dtype: 'f32', maxShardBytes: 60_000 });
      const adapter = await exportAs('peft', 'adapter');
      const zero = await exportBase(folder, join(folder, 'runs'));
      const script = fileURLToPath(new URL('check_exports.py', import.meta.url));
      const request = { merged, adapter, base: zero, promptIds: run.promptIds, greedyIds: run.greedyIds };
      const { stdout } = await promisify(execFile)(python!, [script, JSON.stringify(request)]);
      const answer = JSON.parse(stdout.trim().split('\n').at(-1)!) as Answer;
      console.log(`${name}: logits differ by ${answer.logitDifference}, weights by ${answer.weightDifference}`);
      expect(answer.greedyIds).toEqual(run.greedyIds);
      expectClose(answer.logprobs, run.logprobs, tolerances.logits);
      expect(answer.logitDifference).toBeLessThan(1e-5);
      // PEFT rounds product, scale and sum, each to float32.
      expect(answer.weightDifference).toBeLessThan(4 * 2 ** -24);
    });
  });
}

/** The base as a folder that transformers reads, whatever it is: the merge of an adapter that is zero. */
async function exportBase(folder: string, runs: string): Promise<string> {
  const { readRegistration } = await import('../../src/server/store/run-folder.ts');
  const { writeRunFolder } = await import('./run-folder.ts');
  const { base_model: base } = await readRegistration(join(runs, 'default', 'models', 'agent'));
  await writeRunFolder({ root: join(folder, 'zero'), base, steps: [0], strength: 0 });
  const out = join(folder, 'plain');
  await exportPolicy({ path: join(folder, 'zero'), name: 'agent', format: 'safetensors', dtype: 'f32', out });
  return out;
}

describe.skipIf(python === undefined)('transformers and PEFT (ART_PYTHON)', () => {
  const words =
    'the quick brown fox jumps over a lazy dog while one two three four five six cats sleep in their warm box';
  describeModel(
    'starter model (qwen3)',
    async (folder) => {
      const directory = join(folder, 'base');
      const sizes = { width: 64, layers: 3, heads: 4, kvHeads: 2, headSize: 32, ffWidth: 96 };
      await writeStarterModel({ seed: 3, directory, corpus: Array.from({ length: 40 }, () => words), ...sizes });
      return directory;
    },
    { conversations: [['Go on', words]], updates: 40, learningRate: 1e-2, maxTokens: 64 },
  );

  describe.skipIf(smolLm2 === undefined)('real (ART_SMOLLM2)', () => {
    describeModel('SmolLM2-135M-Instruct (llama)', async () => smolLm2!, {
      conversations: [['Name a colour.', "Arr, matey! Blue be the colour o' the sea."]],
      updates: 4,
      learningRate: 2e-3,
      maxTokens: 64,
    });
  });
});
