/** A GGUF file of each family gives the model that went into it. */
import { afterAll, expect, test } from 'vitest';
import type { DecoderConfig } from '../../src/formats/hf-config.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { checkParameters, parameterShapes } from '../../src/nn/parameters.ts';
import { families } from '../parity/families.ts';
import { expectClose, expectSameBits } from '../tolerance.ts';
import { createTestFolder, modelMetadata, modelTensors, writeGgufFile } from './gguf-files.ts';

const folder = await createTestFolder();
afterAll(folder.remove);

const llama3 = { factor: 32, lowFrequencyFactor: 1, highFrequencyFactor: 4, originalMaxPositions: 8192 };
/** Options that llama.cpp has not, in place of which the file gets others. */
const written: Readonly<Record<string, Partial<DecoderConfig>>> = {
  gemma3: { slidingLayers: [0, 1], queryScale: 1 / Math.sqrt(8) },
  'gemma3-softcap': {
    slidingLayers: [0, 1],
    queryScale: 1 / Math.sqrt(8),
    hasAttentionBias: false,
    hasOutputBias: false,
  },
  'llama-tied-rope-llama3': { ropeTheta: 500_000, ropeScaling: { kind: 'llama3', ...llama3 } },
  'qwen3-untied': { hasAttentionBias: false, hasOutputBias: false },
};
/** What no field of a file says: windows but for gemma3 and phi3. Other models then see all keys, as in llama.cpp. */
const readAs: Readonly<Record<string, Partial<DecoderConfig>>> = {
  mistral: { modelType: 'llama', slidingWindow: null, slidingLayers: [] },
  'qwen2-sliding-rope-yarn': { slidingWindow: null, slidingLayers: [] },
};

test.each(families)('$name', async ({ name, ...family }) => {
  const config = { ...family.config, ...written[name] };
  const names = parameterShapes(config);
  const parameters = new Map([...family.parameters].filter(([key]) => names.has(key)));
  const path = folder.path(`${name}.gguf`);
  await writeGgufFile(path, modelMetadata(config), modelTensors(config, parameters));
  const model = await openModel(path);
  const { ropeScaling } = model.config;
  // A file has 32 bits of each number.
  if (ropeScaling?.kind === 'longrope' && config.ropeScaling?.kind === 'longrope') {
    expect(ropeScaling.attentionFactor).toBeCloseTo(config.ropeScaling.attentionFactor, 6);
    Object.assign(ropeScaling, { attentionFactor: config.ropeScaling.attentionFactor });
  }
  expect(model.config).toEqual({ ...config, ...readAs[name], eosTokenId: [0] });
  const tensors = await model.readTensors();
  checkParameters(tensors, parameterShapes(model.config), path);
  for (const [key, { data }] of parameters) {
    // Gemma's norms are stored as 1 + weight, which rounds.
    if (config.normOffset !== 0 && key.endsWith('norm.weight')) {
      expectClose(tensors.get(key)!.data, data, { rtol: 0, atol: 2 ** -24 }, key);
    } else expectSameBits(tensors.get(key)!.data, data, key);
  }
});

test('rope factors that are not those of Llama 3 are refused by name', async () => {
  const { config, parameters } = families.find(({ name }) => name === 'llama-tied-rope-llama3')!;
  const path = folder.path('factors.gguf');
  await writeGgufFile(path, modelMetadata(config), modelTensors(config, parameters));
  await expect(openModel(path)).rejects.toThrow(
    "rope_freqs.weight must hold Llama 3's factors for 4 pairs, got 4 values, 1.5707963705062866 at pair 0",
  );
});
