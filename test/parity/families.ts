/** The fixtures of `test/fixtures/families`, written by `test/fixtures/generate/families.py`, and how they are fed to our graphs. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DecoderConfig, parseHfConfig } from '../../src/formats/hf-config.ts';
import { readAdapterFiles } from '../../src/formats/peft.ts';
import { readModelTensors, readSafetensors } from '../../src/formats/safetensors.ts';
import { maskedScore } from '../../src/graph/bit-exact.ts';
import { input, makeGraph } from '../../src/graph/builder.ts';
import { type HostTensor, hostIds, hostTensor, type Runtime } from '../../src/graph/runtime.ts';
import { firstVisibleKey, layerKinds, maskNames } from '../../src/nn/attention-masks.ts';
import { declareDecoder, declareInputs, decoderHidden, decoderLogits, withoutCache } from '../../src/nn/decoder.ts';
import { type LoraSpec, loraSpec } from '../../src/nn/lora.ts';
import type { Parameters } from '../../src/nn/parameters.ts';
import { createRopeFeeds } from '../../src/nn/rope-table.ts';
import { weightFeeds } from '../tiny-model.ts';

const root = join(import.meta.dirname, '../fixtures/families');

export interface FixtureSequence {
  readonly tokenIds: readonly number[];
  readonly actionMask: readonly number[];
  readonly tokenWeights: readonly number[];
}

interface Expected {
  readonly source: string;
  readonly seed: number;
  readonly versions: Readonly<Record<string, string>>;
  readonly sequences: readonly FixtureSequence[];
  readonly loss: number;
  readonly adapterLoss?: number;
  readonly greedy: { readonly promptIds: readonly number[]; readonly tokenIds: readonly number[] };
}

/** An adapter that PEFT wrote. */
export interface FixtureAdapter {
  readonly lora: LoraSpec;
  readonly parameters: Parameters;
}

export interface FamilyFixture {
  readonly name: string;
  readonly folder: string;
  readonly config: DecoderConfig;
  readonly parameters: Parameters;
  readonly expected: Expected;
  /** By the names that the generator gives. */
  readonly tensors: ReadonlyMap<string, { readonly shape: readonly number[]; readonly data: Float32Array }>;
  readonly adapter: FixtureAdapter | null;
}

export const familyNames: readonly string[] = readdirSync(root).sort();

async function readFamily(name: string): Promise<FamilyFixture> {
  const folder = join(root, name);
  const json = (file: string): unknown => JSON.parse(readFileSync(join(folder, file), 'utf8'));
  const config = parseHfConfig(json('config.json'), name);
  const tensors = await readSafetensors(join(folder, 'expected.safetensors'));
  const hasAdapter = readdirSync(folder).includes('peft');
  return {
    name,
    folder,
    config,
    parameters: await readModelTensors(folder),
    expected: json('expected.json') as Expected,
    tensors,
    adapter: hasAdapter ? await readAdapter(join(folder, 'peft'), config) : null,
  };
}

async function readAdapter(folder: string, config: DecoderConfig): Promise<FixtureAdapter> {
  const files = await readAdapterFiles(folder);
  return { lora: loraSpec(files.config, config), parameters: files.tensors };
}

export const families: readonly FamilyFixture[] = await Promise.all(familyNames.map(readFamily));

/** Masks of one sequence, [1, 1, G*T, T], for the kinds of layers that the model has. */
export function maskFeeds(config: DecoderConfig, time: number): Record<string, HostTensor> {
  const group = config.heads / config.kvHeads;
  const mask = (kind: (typeof kinds)[number]): HostTensor => {
    const data = new Float32Array(group * time * time).fill(maskedScore);
    for (let row = 0; row < group * time; row++) {
      const position = row % time;
      data.fill(0, row * time + firstVisibleKey(config, kind, position), row * time + position + 1);
    }
    return hostTensor(data, [1, 1, group * time, time]);
  };
  const kinds = layerKinds(config);
  return Object.fromEntries(kinds.map((kind) => [maskNames[kind], mask(kind)]));
}

/** Logits of every place of each sequence, [T·V], of the base or with an adapter. */
export async function runLogits(
  runtime: Runtime,
  { config, parameters, expected }: FamilyFixture,
  adapter: FixtureAdapter | null,
): Promise<(Float32Array | Float64Array)[]> {
  const model = declareDecoder(config, adapter?.lora ?? null);
  const hidden = decoderHidden(model, declareInputs(config, 'T'), withoutCache);
  const logits = decoderLogits(model, hidden, input('rows', ['M'], 'int64'));
  const executable = await runtime.compile(makeGraph({ logits }));
  const weights = weightFeeds(parameters, adapter?.parameters ?? new Map());
  const results: (Float32Array | Float64Array)[] = [];
  for (const { tokenIds } of expected.sequences) {
    const places = tokenIds.map((_, t) => t);
    const outputs = await executable.run({
      ...weights,
      ...createRopeFeeds(config),
      ...maskFeeds(config, tokenIds.length),
      tokenIds: hostIds(tokenIds, [1, tokenIds.length]),
      positions: hostIds(places, [1, tokenIds.length]),
      rows: hostIds(places),
    });
    results.push(outputs.logits!.data as Float32Array);
  }
  await executable.dispose();
  return results;
}
