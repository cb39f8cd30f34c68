/**
 * How a model stretches its rotary embedding, from and to the `rope_scaling` (transformers 4) or `rope_parameters` (5) of a
 * `config.json`. Layer 1. Source: transformers `modeling_rope_utils.py`; `nn/rope-table.ts` has the formulas.
 * Left out: dynamic NTK, whose frequencies change with the length.
 */
import * as z from 'zod';
import { ConfigError } from '../core/errors.ts';

export type RopeScaling =
  | { readonly kind: 'linear'; readonly factor: number }
  | {
      readonly kind: 'llama3';
      readonly factor: number;
      readonly lowFrequencyFactor: number;
      readonly highFrequencyFactor: number;
      readonly originalMaxPositions: number;
    }
  | {
      readonly kind: 'yarn';
      readonly factor: number;
      readonly originalMaxPositions: number;
      readonly betaFast: number;
      readonly betaSlow: number;
      /** Factor of the tables. */
      readonly attentionFactor: number;
      /** The ramp begins and ends at whole pairs. */
      readonly isTruncated: boolean;
    }
  | {
      /** Runs up to `originalMaxPositions`: a longer sequence would turn all its positions by other frequencies. */
      readonly kind: 'longrope';
      readonly shortFactors: readonly number[];
      readonly longFactors: readonly number[];
      readonly originalMaxPositions: number;
      /** Factor of the tables. */
      readonly attentionFactor: number;
      /** `max_position_embeddings` of the model. */
      readonly stretchedMaxPositions: number;
    };

export interface Rope {
  readonly theta: number | null;
  readonly scaling: RopeScaling | null;
  /** Share of a head's channels that are turned. */
  readonly rotaryFactor: number | null;
}

const positive = z.number().positive();
const wholePositive = z.int().positive();
const shared = { rope_theta: positive.nullish(), partial_rotary_factor: positive.max(1).nullish() };

const schemas = {
  default: z.looseObject(shared),
  linear: z.looseObject({ ...shared, factor: positive }),
  llama3: z.looseObject({
    ...shared,
    factor: positive,
    low_freq_factor: positive,
    high_freq_factor: positive,
    original_max_position_embeddings: wholePositive.nullish(),
  }),
  yarn: z.looseObject({
    ...shared,
    factor: positive.nullish(),
    original_max_position_embeddings: wholePositive.nullish(),
    attention_factor: positive.nullish(),
    beta_fast: positive.nullish(),
    beta_slow: positive.nullish(),
    mscale: z.number().nonnegative().nullish(),
    mscale_all_dim: z.number().nonnegative().nullish(),
    truncate: z.boolean().nullish(),
  }),
  longrope: z.looseObject({
    ...shared,
    factor: positive.nullish(),
    original_max_position_embeddings: wholePositive.nullish(),
    attention_factor: positive.nullish(),
    short_factor: z.array(positive).min(1),
    long_factor: z.array(positive).min(1),
  }),
} as const;

type RopeType = keyof typeof schemas;
type Fields<T extends RopeType> = z.infer<(typeof schemas)[T]>;

/** Positions of the model: as `max_position_embeddings` says, and as `original_max_position_embeddings` beside it. */
export interface Positions {
  readonly max: number;
  readonly original: number | null;
}

/** Reads a `rope_scaling` or `rope_parameters` of one kind of layer. `what` names it in errors. Throws ConfigError. */
export function parseRope(value: unknown, positions: Positions, what: string): Rope {
  if (value === null || value === undefined) return { theta: null, scaling: null, rotaryFactor: null };
  const { rope_type: newName, type: oldName } = Object(value) as Record<string, unknown>;
  const type = newName ?? oldName ?? 'default';
  const names = Object.keys(schemas) as RopeType[];
  const known = names.find((name) => name === type);
  if (known === undefined) {
    throw new ConfigError(`${what}: rope_type must be one of ${names.join(', ')}, got ${JSON.stringify(type)}`);
  }
  const parsed = schemas[known].safeParse(value);
  if (!parsed.success) throw new ConfigError(`${what}: ${z.prettifyError(parsed.error)}`, { cause: parsed.error });
  const { rope_theta: theta, partial_rotary_factor: rotaryFactor } = parsed.data;
  const scaling = toScaling(known, parsed.data, positions);
  return { theta: theta ?? null, scaling, rotaryFactor: rotaryFactor ?? null };
}

function toScaling(type: RopeType, fields: unknown, positions: Positions): RopeScaling | null {
  switch (type) {
    case 'default':
      return null;
    case 'linear':
      return { kind: 'linear', factor: (fields as Fields<'linear'>).factor };
    case 'llama3': {
      const hf = fields as Fields<'llama3'>;
      return {
        kind: 'llama3',
        factor: hf.factor,
        lowFrequencyFactor: hf.low_freq_factor,
        highFrequencyFactor: hf.high_freq_factor,
        originalMaxPositions: positions.original ?? hf.original_max_position_embeddings ?? positions.max,
      };
    }
    case 'yarn':
      return yarnScaling(fields as Fields<'yarn'>, positions);
    case 'longrope':
      return longropeScaling(fields as Fields<'longrope'>, positions);
  }
}

function yarnScaling(hf: Fields<'yarn'>, positions: Positions): RopeScaling {
  const originalMaxPositions = positions.original ?? hf.original_max_position_embeddings ?? positions.max;
  const factor = hf.factor ?? positions.max / originalMaxPositions;
  const mscale = (scale: number): number => (factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1);
  const computed = hf.mscale && hf.mscale_all_dim ? mscale(hf.mscale) / mscale(hf.mscale_all_dim) : mscale(1);
  return {
    kind: 'yarn',
    factor,
    originalMaxPositions,
    betaFast: hf.beta_fast ?? 32,
    betaSlow: hf.beta_slow ?? 1,
    attentionFactor: hf.attention_factor ?? computed,
    isTruncated: hf.truncate ?? true,
  };
}

function longropeScaling(hf: Fields<'longrope'>, positions: Positions): RopeScaling {
  const originalMaxPositions = positions.original ?? hf.original_max_position_embeddings ?? positions.max;
  const factor = hf.factor ?? positions.max / originalMaxPositions;
  const computed = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(originalMaxPositions));
  return {
    kind: 'longrope',
    shortFactors: hf.short_factor,
    longFactors: hf.long_factor,
    originalMaxPositions,
    attentionFactor: hf.attention_factor ?? computed,
    stretchedMaxPositions: positions.max,
  };
}

/** The `rope_scaling` that `parseRope` reads back as `scaling`. */
export function toHfRope(scaling: RopeScaling | null): Record<string, unknown> | null {
  if (scaling === null) return null;
  switch (scaling.kind) {
    case 'linear':
      return { rope_type: 'linear', factor: scaling.factor };
    case 'llama3':
      return {
        rope_type: 'llama3',
        factor: scaling.factor,
        low_freq_factor: scaling.lowFrequencyFactor,
        high_freq_factor: scaling.highFrequencyFactor,
        original_max_position_embeddings: scaling.originalMaxPositions,
      };
    case 'yarn':
      return {
        rope_type: 'yarn',
        factor: scaling.factor,
        original_max_position_embeddings: scaling.originalMaxPositions,
        beta_fast: scaling.betaFast,
        beta_slow: scaling.betaSlow,
        attention_factor: scaling.attentionFactor,
        truncate: scaling.isTruncated,
      };
    case 'longrope':
      return {
        rope_type: 'longrope',
        short_factor: [...scaling.shortFactors],
        long_factor: [...scaling.longFactors],
        original_max_position_embeddings: scaling.originalMaxPositions,
        attention_factor: scaling.attentionFactor,
      };
  }
}
