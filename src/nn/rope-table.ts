/**
 * Rotary position tables. Layer 2. Source: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), LongRoPE (arXiv 2402.13753), and
 * transformers `modeling_rope_utils.py`. Frequencies and angles are float32 as there: at position 8,000 rounding turns a pair by up to
 * 5e-4, and models were trained with that.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import type { RopeScaling } from '../formats/rope-scaling.ts';
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import { layerKinds } from './attention-masks.ts';

/** The frequency of each pair, radians per position, and the factor of the tables. */
interface RopeFrequencies {
  readonly frequencies: Float32Array;
  readonly factor: number;
}

/**
 * Every rotary table that the decoder's graph of this model reads, by input name, [positions, rotarySize / 2]: `cos` and `sin`, and
 * `localCos` and `localSin` for sliding layers that turn by another theta. Beyond `maxPositions` they reach to the next power of two,
 * at least 128: ONNX Runtime wants as many positions as the longest row of a batch has tokens, and packed rows have such lengths.
 */
export function createRopeFeeds(
  config: DecoderConfig,
  positions: number = 2 ** Math.ceil(Math.log2(Math.max(128, config.maxPositions))),
): Record<string, HostTensor> {
  const size = config.rotarySize ?? config.headSize;
  const hasLocal = config.localRopeTheta !== null;
  const feeds: Record<string, HostTensor> = {};
  const kinds = layerKinds(config);
  if (kinds.includes('full') || !hasLocal) {
    const table = createTable(positions, ropeFrequencies(size, config.ropeTheta, config.ropeScaling));
    [feeds.cos, feeds.sin] = table;
  }
  if (kinds.includes('sliding') && hasLocal) {
    const table = createTable(positions, ropeFrequencies(size, config.localRopeTheta, null));
    [feeds.localCos, feeds.localSin] = table;
  }
  return feeds;
}

function createTable(positions: number, { frequencies, factor }: RopeFrequencies): readonly [HostTensor, HostTensor] {
  const half = frequencies.length;
  const cos = new Float32Array(positions * half);
  const sin = new Float32Array(positions * half);
  for (let position = 0; position < positions; position++) {
    for (let i = 0; i < half; i++) {
      const angle = Math.fround(position * frequencies[i]!);
      cos[position * half + i] = Math.fround(Math.cos(angle)) * factor;
      sin[position * half + i] = Math.fround(Math.sin(angle)) * factor;
    }
  }
  return [hostTensor(cos, [positions, half]), hostTensor(sin, [positions, half])];
}

/** theta^(−2i / size) for pair i, stretched by `scaling`. */
function ropeFrequencies(size: number, theta: number, scaling: RopeScaling | null): RopeFrequencies {
  const base = Float32Array.from({ length: size / 2 }, (_, i) => 1 / Math.fround(theta ** Math.fround((2 * i) / size)));
  if (scaling === null) return { frequencies: base, factor: 1 };
  switch (scaling.kind) {
    case 'linear':
      return { frequencies: base.map((frequency) => frequency / scaling.factor), factor: 1 };
    case 'llama3':
      return { frequencies: base.map((frequency) => llama3Frequency(frequency, scaling)), factor: 1 };
    case 'yarn':
      return { frequencies: yarnFrequencies(size, theta, scaling), factor: scaling.attentionFactor };
    case 'longrope': {
      const frequencies = base.map((frequency, i) => frequency / scaling.shortFactors[i]!);
      return { frequencies, factor: scaling.attentionFactor };
    }
  }
}

type ScalingOf<K extends RopeScaling['kind']> = Extract<RopeScaling, { readonly kind: K }>;

/** Long wavelengths are stretched, short ones stay, those between are mixed by how often they turn in the original context. */
function llama3Frequency(frequency: number, scaling: ScalingOf<'llama3'>): number {
  const { factor, lowFrequencyFactor, highFrequencyFactor, originalMaxPositions } = scaling;
  const turns = (originalMaxPositions * frequency) / (2 * Math.PI);
  if (turns < lowFrequencyFactor) return frequency / factor;
  if (turns > highFrequencyFactor) return frequency;
  const kept = (turns - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
  return (1 - kept) * (frequency / factor) + kept * frequency;
}

/**
 * Pairs that turn more than `betaFast` times in the original context keep their frequency, those below `betaSlow` are stretched, those
 * between are mixed by a ramp over the pairs. Rounded where transformers rounds: the mix would else turn 7e-5 off at position 32,768.
 */
function yarnFrequencies(size: number, theta: number, scaling: ScalingOf<'yarn'>): Float32Array {
  const { factor, originalMaxPositions, betaFast, betaSlow, isTruncated } = scaling;
  const pairThatTurns = (times: number): number =>
    (size * Math.log(originalMaxPositions / (times * 2 * Math.PI))) / (2 * Math.log(theta));
  const round = (pair: number, f: (value: number) => number): number => (isTruncated ? f(pair) : pair);
  const low = Math.max(round(pairThatTurns(betaFast), Math.floor), 0);
  const highest = Math.min(round(pairThatTurns(betaSlow), Math.ceil), size - 1);
  const high = highest === low ? highest + 0.001 : highest; // The ramp must have a length.
  const { fround } = Math;
  return Float32Array.from({ length: size / 2 }, (_, i) => {
    const period = fround(theta ** fround((2 * i) / size));
    const kept = fround(1 - fround(Math.min(1, Math.max(0, (i - low) / (high - low)))));
    const stretched = fround(1 / fround(factor * period));
    return fround(stretched * fround(1 - kept)) + fround(fround(1 / period) * kept);
  });
}
