/** A run folder with checkpoints of random adapters, as a server leaves it, without one. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { openModel } from '../../src/formats/model-source.ts';
import { writeAdapterFiles } from '../../src/formats/peft.ts';
import { loraSpec } from '../../src/nn/lora.ts';
import { openCheckpoints } from '../../src/server/store/checkpoints.ts';
import { runDirectory, writeRegistration } from '../../src/server/store/run-folder.ts';
import { hashBaseModel } from '../../src/server/training/base-model.ts';
import { randomAdapter } from '../tiny-model.ts';

export interface RunFolderOptions {
  /** Folder of all runs. */
  readonly root: string;
  readonly base: string;
  readonly rank?: number;
  readonly alpha?: number;
  readonly targetModules?: readonly string[];
  /** Default [0, 1]; each has another adapter. */
  readonly steps?: readonly number[];
  /** Multiplies B: how far the policy is from the base. */
  readonly strength?: number;
  readonly chatTemplate?: string;
  /** Writes the checkpoint of a step in place of a random adapter. */
  readonly fill?: (step: number, folder: string) => Promise<void>;
}

/** Project `default`, model `agent`. Returns the folder of the run. */
export async function writeRunFolder(options: RunFolderOptions): Promise<string> {
  const { root, base, rank = 4, alpha = 8, targetModules, steps = [0, 1], strength = 1, chatTemplate } = options;
  const { config } = await openModel(base);
  const spec = loraSpec({ rank, alpha, ...(targetModules !== undefined && { targetModules }) }, config);
  const directory = runDirectory(root, 'default', 'agent');
  await mkdir(directory, { recursive: true });
  const baseModelSha256 = await hashBaseModel(base);
  const lora = { rank, alpha, target_modules: [...spec.targetModules] };
  const request = {
    name: 'agent',
    project: 'default',
    base_model: base,
    lora,
    seed: 0,
    ...(chatTemplate !== undefined && { chat_template: chatTemplate }),
  };
  await writeRegistration(directory, request, { commit: null, sha256: baseModelSha256 });
  const store = await openCheckpoints(join(directory, 'checkpoints'));
  for (const [index, step] of steps.entries()) {
    const tensors = randomAdapter(config, spec, 100 + step);
    for (const [name, { data }] of tensors) {
      if (name.includes('lora_B')) for (let i = 0; i < data.length; i++) data[i]! *= strength;
    }
    const manifest = {
      step,
      parentStep: index === 0 ? null : steps[index - 1]!,
      baseModelSha256,
      packageVersion: '0.0.0',
      idempotencyKey: index === 0 ? null : `key-${step}`,
      config: null,
      history: [],
      timings: [],
    };
    const writeRandom = (folder: string) => writeAdapterFiles(folder, { config: spec, tensors, baseModel: base });
    await store.commit(manifest, (folder) =>
      options.fill === undefined ? writeRandom(folder) : options.fill(step, folder),
    );
  }
  return directory;
}
