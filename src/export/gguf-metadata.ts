/**
 * What llama.cpp must know of a decoder, as GGUF metadata, and the tensors that carry rope scaling. Layer 5.
 * Source: llama.cpp conversion/base.py, llama.py, gemma.py, phi.py (keys), src/llama-context.cpp and src/models/*.cpp (what they mean).
 * What llama.cpp cannot compute as the model does is refused by name.
 */
import { ConfigError } from '../core/errors.ts';
import type { DecoderConfig } from '../formats/decoder-config.ts';
import { ggufArchitectures } from '../formats/gguf-names.ts';
import type { GgufValue } from '../formats/gguf-writer.ts';
import type { RopeScaling } from '../formats/rope-scaling.ts';
import type { FloatTensor } from '../formats/safetensors.ts';

/** gemma3 in llama.cpp: every sixth layer sees all keys. */
const gemmaPattern = 6;

export const uint32 = (value: number): GgufValue => ({ type: 'uint32', value });
export const float32 = (value: number): GgufValue => ({ type: 'float32', value });
export const string = (value: string): GgufValue => ({ type: 'string', value });
export const bool = (value: boolean): GgufValue => ({ type: 'bool', value });

/** Sizes and constants under the architecture's prefix. Throws ConfigError on what llama.cpp has no counterpart of. */
export function architectureMetadata(config: DecoderConfig): Map<string, GgufValue> {
  checkSupported(config);
  const architecture = ggufArchitectures[config.modelType];
  const entries: [string, GgufValue][] = [
    ['block_count', uint32(config.layers)],
    ['context_length', uint32(contextLength(config))],
    ['embedding_length', uint32(config.width)],
    ['feed_forward_length', uint32(config.ffWidth)],
    ['attention.head_count', uint32(config.heads)],
    ['attention.head_count_kv', uint32(config.kvHeads)],
    ['rope.freq_base', float32(config.ropeTheta)],
    ['attention.layer_norm_rms_epsilon', float32(config.normEpsilon)],
    ['attention.key_length', uint32(config.headSize)],
    ['attention.value_length', uint32(config.headSize)],
    ['vocab_size', uint32(config.vocabSize)],
    ['rope.dimension_count', uint32(config.rotarySize ?? config.headSize)],
    ...ropeScalingEntries(config.ropeScaling),
  ];
  if (architecture === 'gemma3' || architecture === 'phi3') {
    entries.push(['attention.sliding_window', uint32(config.slidingWindow ?? 0)]);
  }
  if (config.localRopeTheta !== null) entries.push(['rope.freq_base_swa', float32(config.localRopeTheta)]);
  if (config.logitSoftcap !== null) entries.push(['final_logit_softcapping', float32(config.logitSoftcap)]);
  return new Map(entries.map(([key, value]) => [`${architecture}.${key}`, value]));
}

/** Tensors beside the parameters: factors that divide the rotary frequencies. */
export function ropeTensors(config: DecoderConfig): Map<string, FloatTensor> {
  const scaling = config.ropeScaling;
  const vector = (values: readonly number[]): FloatTensor => ({
    shape: [values.length],
    data: Float32Array.from(values),
  });
  if (scaling?.kind === 'llama3') return new Map([['rope_freqs.weight', vector(llama3Factors(config, scaling))]]);
  if (scaling?.kind !== 'longrope') return new Map();
  return new Map([
    ['rope_factors_long.weight', vector(scaling.longFactors)],
    ['rope_factors_short.weight', vector(scaling.shortFactors)],
  ]);
}

/** What of the model llama.cpp computes otherwise without saying so; empty if nothing. */
export function architectureWarnings(config: DecoderConfig): string[] {
  const warnings: string[] = [];
  const { slidingWindow: window, ropeScaling: scaling } = config;
  if (window !== null && ggufArchitectures[config.modelType] !== 'gemma3') {
    warnings.push(
      `llama.cpp lets ${config.modelType} models see all tokens: beyond the window of ${window} its results differ from those of training`,
    );
  }
  if (scaling?.kind === 'longrope') {
    const most = scaling.originalMaxPositions;
    warnings.push(
      `llama.cpp turns positions otherwise than in training if its context is set above ${most} tokens; keep it at ${most} (-c ${most})`,
    );
  }
  return warnings;
}

function contextLength(config: DecoderConfig): number {
  return config.ropeScaling?.kind === 'longrope' ? config.ropeScaling.stretchedMaxPositions : config.maxPositions;
}

function ropeScalingEntries(scaling: RopeScaling | null): [string, GgufValue][] {
  switch (scaling?.kind) {
    case undefined:
    case 'llama3': // a tensor
      return [];
    case 'linear':
      return [
        ['rope.scaling.type', string('linear')],
        ['rope.scaling.factor', float32(scaling.factor)],
      ];
    case 'yarn':
      return [
        ['rope.scaling.type', string('yarn')],
        ['rope.scaling.factor', float32(scaling.factor)],
        ['rope.scaling.original_context_length', uint32(scaling.originalMaxPositions)],
        ['rope.scaling.yarn_beta_fast', float32(scaling.betaFast)],
        ['rope.scaling.yarn_beta_slow', float32(scaling.betaSlow)],
        // llama.cpp multiplies the tables by 1 + 0.1 · ln(factor) in any case.
        ['rope.scaling.attn_factor', float32(scaling.attentionFactor / (1 + 0.1 * Math.log(scaling.factor)))],
      ];
    case 'longrope':
      return [
        ['rope.scaling.type', string('longrope')],
        ['rope.scaling.original_context_length', uint32(scaling.originalMaxPositions)],
        ['rope.scaling.attn_factor', float32(scaling.attentionFactor)],
      ];
  }
}

/** Source: transformers `_compute_llama3_parameters`, as the factor that divides each frequency. */
function llama3Factors(config: DecoderConfig, scaling: Extract<RopeScaling, { readonly kind: 'llama3' }>): number[] {
  const { factor, lowFrequencyFactor, highFrequencyFactor, originalMaxPositions } = scaling;
  const size = config.rotarySize ?? config.headSize;
  return Array.from({ length: size / 2 }, (_, i) => {
    const turns = originalMaxPositions / (2 * Math.PI * config.ropeTheta ** ((2 * i) / size));
    if (turns < lowFrequencyFactor) return factor;
    if (turns > highFrequencyFactor) return 1;
    const kept = (turns - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
    return 1 / ((1 - kept) / factor + kept);
  });
}

function checkSupported(config: DecoderConfig): void {
  const architecture = ggufArchitectures[config.modelType];
  const isGemma = architecture === 'gemma3';
  const scaling = config.ropeScaling;
  const refuse = (what: string, got: unknown): never => {
    throw new ConfigError(`gguf: llama.cpp's ${architecture} has no ${what}, got ${JSON.stringify(got)}`);
  };
  if (config.hasQkNorm && !isGemma && architecture !== 'qwen3') refuse('norm of q and k', config.hasQkNorm);
  if (!config.hasQkNorm && architecture === 'qwen3') refuse('layers without a norm of q and k', config.hasQkNorm);
  if (scaling?.kind === 'yarn' && !scaling.isTruncated)
    refuse('yarn without rounded borders (truncate: false)', scaling);
  if (config.hasOutputBias && architecture !== 'llama') refuse('bias of o_proj', config.hasOutputBias);
  if (config.hasMlpBias && architecture !== 'llama') refuse('bias in the MLP', config.hasMlpBias);
  if (!isGemma) {
    if (config.logitSoftcap !== null) refuse('soft cap of logits', config.logitSoftcap);
    if (config.queryScale !== null) refuse('scale of queries other than 1/√C', config.queryScale);
    return;
  }
  const sliding = Array.from({ length: config.layers }, (_, layer) => layer).filter(
    (layer) => (layer + 1) % gemmaPattern !== 0,
  );
  if (config.slidingWindow !== null && config.slidingLayers.join() !== sliding.join()) {
    refuse(`order of sliding layers other than five to each full one`, config.slidingLayers);
  }
  // 62 layers are the 27B model, whose scale llama.cpp takes from the width.
  const scale =
    config.layers === 62 ? 1 / Math.sqrt(Math.floor(config.width / config.heads)) : 1 / Math.sqrt(config.headSize);
  const queryScale = config.queryScale ?? 1 / Math.sqrt(config.headSize);
  if (Math.abs(queryScale / scale - 1) > 1e-6) refuse('such scale of queries', config.queryScale);
}
