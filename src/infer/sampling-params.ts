/** Settings of one sampling request, and the values that they may have. Layer 3. */
import type { TextConstraint } from '../core/constraint.ts';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { SamplerParams } from './sampler.ts';

export interface SequenceParams extends SamplerParams {
  readonly maxTokens: number;
  readonly seed: number;
  readonly stopTokenIds: readonly number[];
  readonly stopStrings: readonly string[];
  /** 0–20 alternatives per token. */
  readonly topLogprobs: number;
  /** Neither stop token nor stop string ends the sequence before so many tokens; default 0. */
  readonly minTokens?: number;
  readonly constraint?: TextConstraint;
}

/** Every setting, so that none is misspelt. */
const names: Readonly<Record<keyof SequenceParams, true>> = {
  maxTokens: true,
  temperature: true,
  topP: true,
  topK: true,
  seed: true,
  stopTokenIds: true,
  stopStrings: true,
  topLogprobs: true,
  minP: true,
  frequencyPenalty: true,
  presencePenalty: true,
  repetitionPenalty: true,
  logitBias: true,
  constraint: true,
  minTokens: true,
};

/** Inverse temperatures above 1e6 overflow float32 logits, whose logprobs would then be NaN. */
const MIN_TEMPERATURE = 1e-6;
/** OpenAI's ranges. */
const MAX_PENALTY = 2;
const MAX_BIAS = 100;

/** Throws ConfigError unless it is 0 (greedy) or at least 1e-6. */
export function checkTemperature(temperature: number): void {
  if (temperature === 0 || (temperature >= MIN_TEMPERATURE && Number.isFinite(temperature))) return;
  throw new ConfigError(`temperature: must be 0 or at least ${MIN_TEMPERATURE}, got ${temperature}`);
}

/** Throws ConfigError that names the setting which is unknown or out of range. */
export function checkSampling(params: SequenceParams): void {
  refuseUnknownKeys('sampling', params, Object.keys(names));
  const { maxTokens, temperature, topP, topK, seed, stopStrings, topLogprobs } = params;
  checkTemperature(temperature);
  checkCount('maxTokens', maxTokens, 1);
  requireThat(topP > 0 && topP <= 1, 'topP', 'above 0 and at most 1', topP);
  checkCount('topK', topK, 0);
  requireThat(Number.isSafeInteger(seed), 'seed', 'a whole number', seed);
  requireThat(!stopStrings.includes(''), 'stopStrings', 'texts of at least one character', "''");
  checkAlternatives('topLogprobs', topLogprobs);
  const { minP = 0, minTokens = 0, repetitionPenalty = 1 } = params;
  requireThat(minP >= 0 && minP <= 1, 'minP', 'from 0 to 1', minP);
  for (const name of ['frequencyPenalty', 'presencePenalty'] as const) {
    const penalty = params[name] ?? 0;
    requireThat(Math.abs(penalty) <= MAX_PENALTY, name, `from −${MAX_PENALTY} to ${MAX_PENALTY}`, penalty);
  }
  const isFactor = repetitionPenalty > 0 && Number.isFinite(repetitionPenalty);
  requireThat(isFactor, 'repetitionPenalty', 'a number above 0', repetitionPenalty);
  const isMinimum = Number.isSafeInteger(minTokens) && minTokens >= 0 && minTokens <= maxTokens;
  requireThat(isMinimum, 'minTokens', `a whole number from 0 to maxTokens (${maxTokens})`, minTokens);
}

/** Throws ConfigError unless it is a number of alternatives that can be asked for. */
export function checkAlternatives(name: string, count: number): void {
  const isRight = Number.isSafeInteger(count) && count >= 0 && count <= 20;
  requireThat(isRight, name, 'a whole number from 0 to 20', count);
}

/** Throws ConfigError unless each id of the bias is one of the vocabulary, named once, and its bias in range. */
export function checkLogitBias(logitBias: NonNullable<SequenceParams['logitBias']>, vocabSize: number): void {
  const seen = new Set<number>();
  for (const [tokenId, bias] of logitBias) {
    const isKnown = Number.isSafeInteger(tokenId) && tokenId >= 0 && tokenId < vocabSize;
    requireThat(isKnown, 'logitBias', `of token ids below ${vocabSize}`, tokenId);
    requireThat(!seen.has(tokenId), 'logitBias', 'one value per token', `a second one for ${tokenId}`);
    requireThat(Math.abs(bias) <= MAX_BIAS, 'logitBias', `from −${MAX_BIAS} to ${MAX_BIAS}`, `${bias} for ${tokenId}`);
    seen.add(tokenId);
  }
}

function checkCount(name: string, value: number, least: number): void {
  requireThat(Number.isSafeInteger(value) && value >= least, name, `a whole number ≥ ${least}`, value);
}

function requireThat(isRight: boolean, name: string, rule: string, got: unknown): void {
  if (!isRight) throw new ConfigError(`${name}: must be ${rule}, got ${got}`);
}
