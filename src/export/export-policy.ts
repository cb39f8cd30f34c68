/**
 * A trained policy leaves its run: as a PEFT adapter, a merged Hugging Face folder, or a file for llama.cpp. Layer 5.
 * The output appears whole or not at all, and one tensor of the base is in memory at a time.
 */
import { copyFile, open, readdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { AbortedError, ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { EncodedFloats } from '../formats/encode-floats.ts';
import { readSafetensorsHeader } from '../formats/safetensors.ts';
import { findPolicy, type Policy, type PolicySource } from './find-policy.ts';
import { planGgufLora, planGgufModel, writeGguf } from './gguf-files.ts';
import { defaultShardBytes, planHuggingFace, type SafetensorsFloats, writeHuggingFace } from './hugging-face.ts';
import { checkApart, checkOutput, checkRoom, type Output, writeOutput } from './output.ts';

export const exportFormats = ['peft', 'safetensors', 'gguf-lora', 'gguf'] as const;
export type ExportFormat = (typeof exportFormats)[number];

export const exportDtypes = ['f32', 'f16', 'bf16', 'q8_0'] as const;
export type ExportDtype = (typeof exportDtypes)[number];

export interface ExportOptions extends PolicySource {
  /** `peft`: the adapter's two files. `safetensors`: a model folder for transformers. `gguf-lora`, `gguf`: a file for llama.cpp. */
  readonly format: ExportFormat;
  /** A file for the GGUF formats, a folder for the others. */
  readonly out: string;
  /** How matrices are stored. Default: float32 for an adapter, else what the base is stored in, float32 if that is quantised. */
  readonly dtype?: ExportDtype;
  /** Replaces an earlier export at `out`. Default false: it must not exist. */
  readonly force?: boolean;
  /** Of a safetensors folder; default 5e9. */
  readonly maxShardBytes?: number;
  readonly signal?: AbortSignal;
  /** Bytes of tensors written so far, and of all. */
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void;
}

export interface ExportResult {
  /** Absolute. */
  readonly path: string;
  readonly format: ExportFormat;
  /** Null for the adapter's own files, which are copied. */
  readonly dtype: ExportDtype | null;
  readonly step: number;
  /** Of the weights. */
  readonly bytes: number;
  /** What another program will do differently from the engine that trained; empty if nothing is known. */
  readonly warnings: readonly string[];
}

interface Plan {
  readonly bytes: number;
  readonly warnings: readonly string[];
  readonly fill: (temporary: string, onTensor: (bytes: number) => void) => Promise<void>;
}

const encodings: { readonly [D in ExportDtype]: EncodedFloats } = {
  f32: 'F32',
  f16: 'F16',
  bf16: 'BF16',
  q8_0: 'Q8_0',
};

/**
 * Writes one policy of a run folder; no server is needed, and one may be running. Throws ConfigError on an option, an output that exists or
 * a base model that is missing or another one; CheckpointError on a damaged checkpoint; DataError on a damaged base; StorageError if the
 * disk is full. Nothing is left then.
 */
export async function exportPolicy(options: ExportOptions): Promise<ExportResult> {
  checkOptions(options);
  const { format, signal } = options;
  const output: Output = {
    path: resolve(options.out),
    kind: format.startsWith('gguf') ? 'file' : 'folder',
    isForced: options.force ?? false,
  };
  await checkOutput(output);
  const policy = await findPolicy(options);
  await checkApart(output, policy);
  const dtype = format === 'peft' ? null : (options.dtype ?? (await defaultDtype(format, policy)));
  const plan = await planOf(format, dtype, policy, options);
  await checkRoom(output, plan.bytes);
  let done = 0;
  await writeOutput(output, (temporary) =>
    plan.fill(temporary, (bytes) => {
      done += bytes;
      options.onProgress?.(Math.min(done, plan.bytes), plan.bytes);
      if (signal?.aborted) throw new AbortedError('export: stopped, nothing is left of it', { cause: signal.reason });
    }),
  );
  return { path: output.path, format, dtype, step: policy.step, bytes: plan.bytes, warnings: plan.warnings };
}

const optionNames: { readonly [K in keyof Required<ExportOptions>]: true } = {
  path: true,
  project: true,
  name: true,
  step: true,
  base: true,
  format: true,
  out: true,
  dtype: true,
  force: true,
  maxShardBytes: true,
  signal: true,
  onProgress: true,
};

function checkOptions(options: ExportOptions): void {
  refuseUnknownKeys('export', options, Object.keys(optionNames));
  const { format, dtype, maxShardBytes = defaultShardBytes } = options;
  if (!exportFormats.includes(format)) {
    throw new ConfigError(`export: format must be one of ${exportFormats.join(', ')}, got '${format}'`);
  }
  if (dtype !== undefined && !exportDtypes.includes(dtype)) {
    throw new ConfigError(`export: dtype must be one of ${exportDtypes.join(', ')}, got '${dtype}'`);
  }
  if (format === 'peft' && dtype !== undefined) {
    throw new ConfigError(`export: peft copies the adapter as it is, so dtype must be left out, got '${dtype}'`);
  }
  if (format === 'safetensors' && dtype === 'q8_0') {
    throw new ConfigError("export: safetensors must have dtype f32, f16 or bf16, got 'q8_0'; q8_0 is for gguf");
  }
  if (!(maxShardBytes > 0)) throw new ConfigError(`export: maxShardBytes must be above 0, got ${maxShardBytes}`);
}

async function planOf(
  format: ExportFormat,
  dtype: ExportDtype | null,
  policy: Policy,
  { maxShardBytes = defaultShardBytes }: ExportOptions,
): Promise<Plan> {
  if (dtype === null) return planPeft(policy);
  if (format === 'safetensors') {
    const type = encodings[dtype] as SafetensorsFloats;
    const plan = planHuggingFace(policy, type, maxShardBytes);
    const fill: Plan['fill'] = (folder, onTensor) => writeHuggingFace(folder, policy, type, plan, onTensor);
    return { bytes: plan.totalBytes, warnings: [], fill };
  }
  const type = encodings[dtype];
  const plan = format === 'gguf' ? await planGgufModel(policy, type, tmpdir()) : planGgufLora(policy, type);
  const fill: Plan['fill'] = (path, onTensor) => writeGguf(path, plan, onTensor);
  return { bytes: plan.layout.totalBytes, warnings: plan.warnings, fill };
}

/** The checkpoint's own two files, which are PEFT's already; `findPolicy` has verified them. */
function planPeft({ directory, adapter }: Policy): Plan {
  const bytes = [...adapter.tensors.values()].reduce((total, { data }) => total + data.byteLength, 0);
  const fill: Plan['fill'] = async (folder, onTensor) => {
    for (const name of ['adapter_model.safetensors', 'adapter_config.json']) {
      await copyFile(join(directory, name), join(folder, name));
      const file = await open(join(folder, name), 'r+');
      await file.sync().finally(() => file.close());
    }
    onTensor(bytes);
  };
  return { bytes, warnings: [], fill };
}

async function defaultDtype(format: ExportFormat, { base }: Policy): Promise<ExportDtype> {
  if (format === 'gguf-lora') return 'f32';
  const names = await readdir(base.path).catch(() => []); // a GGUF file
  const first = names.find((name) => name.endsWith('.safetensors'));
  if (first === undefined) return 'f32';
  const { entries } = await readSafetensorsHeader(join(base.path, first));
  const matrix = [...entries.values()].find(({ shape }) => shape.length === 2);
  if (matrix?.dtype === 'BF16') return 'bf16';
  if (matrix?.dtype === 'F16') return 'f16';
  return 'f32';
}
