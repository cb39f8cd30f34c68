/**
 * LoRA adapters in the files of Python PEFT: `adapter_config.json` and `adapter_model.safetensors`. Layer 1.
 * Source: huggingface/peft tuners/lora/config.py and utils/save_and_load.py.
 * Left out: everything that changes the formula `W + (alpha/R)·B·A` (rsLoRA, DoRA, biases, per-module ranks); refused.
 */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { ConfigError, DataError } from '../core/errors.ts';
import { formatJson, readJsonFile, writeFileAtomic } from './atomic-files.ts';
import { type FloatTensor, readSafetensors, toSafetensors, writeSafetensors } from './safetensors.ts';

export interface LoraConfig {
  /** R */
  readonly rank: number;
  readonly alpha: number;
  /** Last parts of module names, e.g. `q_proj`. */
  readonly targetModules: readonly string[];
}

export interface AdapterFiles {
  readonly config: LoraConfig;
  /** Keys of `adapterKey`: A is [R, in], B is [out, R]. */
  readonly tensors: ReadonlyMap<string, FloatTensor>;
  /** Name or path of the model that the adapter belongs to. */
  readonly baseModel: string;
}

/** The key in the file of A or B of a module, e.g. of `model.layers.0.self_attn.q_proj`. */
export function adapterKey(module: string, part: 'A' | 'B'): string {
  return `base_model.model.${module}.lora_${part}.weight`;
}

/**
 * Writes the two files into `directory`, which is made if missing; each file appears whole or not at all, the weights
 * first. Throws ConfigError or DataError if config and tensors do not fit together.
 */
export async function writeAdapterFiles(directory: string, adapter: AdapterFiles): Promise<void> {
  checkAdapter(adapter, directory);
  await mkdir(directory, { recursive: true });
  const tensors = toSafetensors(adapter.tensors);
  await writeSafetensors(join(directory, 'adapter_model.safetensors'), tensors, { format: 'pt' });
  await writeFileAtomic(join(directory, 'adapter_config.json'), [formatJson(peftConfig(adapter))]);
}

/** Reads and checks the two files. Throws ConfigError if an option is not implemented, DataError if a file is damaged. */
export async function readAdapterFiles(directory: string): Promise<AdapterFiles> {
  const path = join(directory, 'adapter_config.json');
  const { config, baseModel } = parsePeftConfig(await readJsonFile(path), path);
  const tensors = await readSafetensors(join(directory, 'adapter_model.safetensors'));
  const adapter = { config, tensors, baseModel };
  checkAdapter(adapter, directory);
  return adapter;
}

function peftConfig({ config, baseModel }: AdapterFiles): Record<string, unknown> {
  return {
    base_model_name_or_path: baseModel,
    bias: 'none',
    fan_in_fan_out: false,
    inference_mode: true,
    init_lora_weights: true,
    lora_alpha: config.alpha,
    lora_dropout: 0,
    modules_to_save: null,
    peft_type: 'LORA',
    r: config.rank,
    revision: null,
    target_modules: [...config.targetModules].sort(),
    task_type: 'CAUSAL_LM',
    use_dora: false,
    use_rslora: false,
  };
}

const peftSchema = z.looseObject({
  base_model_name_or_path: z.string().nullish(),
  peft_type: z.literal('LORA'),
  r: z.int().positive(),
  lora_alpha: z.number().positive(),
  target_modules: z.array(z.string()).min(1),
  bias: z.literal('none').default('none'),
  fan_in_fan_out: z.literal(false).default(false),
  use_rslora: z.literal(false).default(false),
  use_dora: z.literal(false).default(false),
});

/** Options of PEFT that change the formula; off means absent, null, false or empty. */
const refusedWhenOn = [
  'alora_invocation_tokens',
  'alpha_pattern',
  'arrow_config',
  'exclude_modules',
  'kasa_config',
  'layer_replication',
  'layers_to_transform',
  'lora_bias',
  'modules_to_save',
  'monteclora_config',
  'rank_pattern',
  'target_parameters',
  'trainable_token_indices',
  'use_bdlora',
  'use_qalora',
] as const;

function parsePeftConfig(json: unknown, path: string): Omit<AdapterFiles, 'tensors'> {
  const parsed = peftSchema.safeParse(json);
  if (!parsed.success) throw new ConfigError(`${path}: ${z.prettifyError(parsed.error)}`, { cause: parsed.error });
  const { data } = parsed;
  for (const option of refusedWhenOn) {
    const value = data[option];
    const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0;
    if (value !== undefined && value !== null && value !== false && !isEmpty) {
      throw new ConfigError(`${path}: ${option} ${JSON.stringify(value)} is not implemented`);
    }
  }
  return {
    config: { rank: data.r, alpha: data.lora_alpha, targetModules: data.target_modules },
    baseModel: data.base_model_name_or_path ?? '',
  };
}

function checkAdapter({ config, tensors }: AdapterFiles, source: string): void {
  const { rank, alpha, targetModules } = config;
  if (!Number.isSafeInteger(rank) || rank < 1) {
    throw new ConfigError(`${source}: rank must be an integer ≥ 1, got ${rank}`);
  }
  if (!Number.isFinite(alpha) || alpha <= 0) throw new ConfigError(`${source}: alpha must be above 0, got ${alpha}`);
  if (tensors.size === 0) throw new DataError(`${source}: an adapter must have tensors, got none`);
  const seen = new Set<string>();
  for (const [key, { shape, data }] of tensors) {
    const match = /^base_model\.model\.(.+)\.lora_([AB])\.weight$/.exec(key);
    const [, module = '', part] = match ?? [];
    if (match === null) {
      throw new DataError(`${source}: keys must be base_model.model.<module>.lora_<A|B>.weight, got ${key}`);
    }
    const target = module.split('.').at(-1) ?? '';
    if (!targetModules.includes(target)) {
      throw new DataError(`${source}: modules must be of [${targetModules.join(', ')}], got ${module}`);
    }
    if (shape.length !== 2 || (part === 'A' ? shape[0] : shape[1]) !== rank) {
      const rule = part === 'A' ? '[R, in]' : '[out, R]';
      throw new DataError(`${source}: ${key} must be ${rule} with R = ${rank}, got [${shape.join(', ')}]`);
    }
    const bad = data.findIndex((value) => !Number.isFinite(value));
    if (bad >= 0) throw new DataError(`${source}: ${key} must be finite, got ${data[bad]} at ${bad}`);
    if (!tensors.has(adapterKey(module, part === 'A' ? 'B' : 'A'))) {
      throw new DataError(`${source}: A and B come in pairs, got only ${key}`);
    }
    seen.add(target);
  }
  const unused = targetModules.find((target) => !seen.has(target));
  if (unused !== undefined) throw new DataError(`${source}: target module ${unused} has no tensors`);
}
