/** Model shapes of the benchmarks, with random weights. */
import { type DecoderConfig, plainDecoder } from '../src/formats/hf-config.ts';
import { starterTensors } from '../src/formats/starter-model.ts';
import { loraSpec } from '../src/nn/lora.ts';
import { countValues, type Parameters, parameterShapes } from '../src/nn/parameters.ts';

export interface BenchModel {
  readonly name: string;
  readonly config: DecoderConfig;
  readonly parameters: Parameters;
}

/** An adapter on every linear layer. */
export const lora = loraSpec({ rank: 8, alpha: 16 }, { modelType: 'qwen3', hasFusedProjections: false });

type Sizes = Pick<DecoderConfig, 'width' | 'layers' | 'heads' | 'kvHeads' | 'headSize' | 'ffWidth' | 'vocabSize'> &
  Partial<DecoderConfig>;

const shapes: readonly Sizes[] = [
  // A starter model of default size.
  { width: 128, layers: 4, heads: 4, kvHeads: 2, headSize: 32, ffWidth: 384, vocabSize: 320 },
  { width: 256, layers: 4, heads: 4, kvHeads: 2, headSize: 64, ffWidth: 768, vocabSize: 1024 },
  { width: 512, layers: 8, heads: 8, kvHeads: 4, headSize: 64, ffWidth: 1536, vocabSize: 4096 },
  // SmolLM2-135M, with a shorter context.
  {
    ...{ width: 576, layers: 30, heads: 9, kvHeads: 3, headSize: 64, ffWidth: 1536, vocabSize: 49_152 },
    ...{ modelType: 'llama', hasQkNorm: false, ropeTheta: 100_000, normEpsilon: 1e-5, maxPositions: 2048 },
  },
];

/** The first so many are measured unless others are asked for. */
export const modelCount = 3;

/** Made when asked for: the largest takes seconds to draw. */
export function createModel(index: number): BenchModel {
  const sizes = shapes[index]!;
  const config: DecoderConfig = {
    ...plainDecoder,
    modelType: 'qwen3',
    maxPositions: 1024,
    ropeTheta: 10_000,
    normEpsilon: 1e-6,
    isEmbeddingTied: true,
    hasQkNorm: true,
    eosTokenId: [],
    bosTokenId: null,
    padTokenId: null,
    ...sizes,
  };
  const named = parameterShapes(config);
  const millions = countValues(named.values()) / 1e6;
  return {
    name: `${millions < 100 ? millions.toPrecision(2) : Math.round(millions)} M (width ${sizes.width}, ${sizes.layers} layers)`,
    config,
    // A starter model has norms of q and k, others do not.
    parameters: new Map([...starterTensors(config, 1)].filter(([parameter]) => named.has(parameter))),
  };
}
