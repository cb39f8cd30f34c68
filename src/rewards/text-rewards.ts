/** Rewards of what the last turn says. Layer 5. Each gives 0 to 1 and looks at `text`, by default the last turn's. */
import { distance } from 'fastest-levenshtein';
import { z } from 'zod';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Trajectory } from '../core/trajectory.ts';
import { type FromScenario, lastText, resolveFrom, type SyncReward, sampledTexts } from './reward.ts';

export interface TextOptions {
  /** What is looked at; default the text of the last turn. */
  readonly text?: (trajectory: Trajectory) => string;
  /** What both sides go through before they are compared; default `trim`. `loose`: lower case, one space for any run of spaces. */
  readonly normalize?: 'none' | 'trim' | 'loose';
}

const normalizations = {
  none: (text: string) => text,
  trim: (text: string) => text.trim(),
  loose: (text: string) => text.trim().toLowerCase().replaceAll(/\s+/g, ' '),
};

/** 1 if the text is what is expected, or one of the texts that are; else 0. */
export function exactMatch<Scenario = unknown>(
  expected: FromScenario<string | readonly string[], Scenario>,
  options: TextOptions = {},
): SyncReward<Scenario> {
  refuseUnknownKeys('exactMatch', options, ['text', 'normalize']);
  const { text = lastText, normalize = 'trim' } = options;
  const change = normalizations[normalize];
  return (trajectory, scenario) => {
    const given = change(text(trajectory));
    return [resolveFrom(expected, scenario, trajectory)].flat().some((one) => change(one) === given) ? 1 : 0;
  };
}

/**
 * 1 − edits / length of the longer text, with the nearest of the expected texts: 1 for the same, 0 for nothing in common.
 * A text above `maxCharacters` (default 20,000) gets 0: edits take time with the product of both lengths.
 */
export function fuzzyMatch<Scenario = unknown>(
  expected: FromScenario<string | readonly string[], Scenario>,
  options: TextOptions & { readonly maxCharacters?: number } = {},
): SyncReward<Scenario> {
  refuseUnknownKeys('fuzzyMatch', options, ['text', 'normalize', 'maxCharacters']);
  const { text = lastText, normalize = 'trim', maxCharacters = 20_000 } = options;
  const change = normalizations[normalize];
  return (trajectory, scenario) => {
    const given = change(text(trajectory));
    if (given.length > maxCharacters) return 0;
    const similarities = [resolveFrom(expected, scenario, trajectory)].flat().map((one) => {
      const wanted = change(one).slice(0, maxCharacters);
      const longer = Math.max(wanted.length, given.length);
      return longer === 0 ? 1 : 1 - distance(wanted, given) / longer;
    });
    return Math.max(0, ...similarities);
  };
}

/** Share of turns whose text has the form: all turns, or with `turns: 'last'` (default) the last alone, which gives 1 or 0. */
export function formatCheck<Scenario = unknown>(
  form: RegExp | ((text: string, trajectory: Trajectory) => boolean),
  options: { readonly turns?: 'last' | 'all' } & Pick<TextOptions, 'text'> = {},
): SyncReward<Scenario> {
  refuseUnknownKeys('formatCheck', options, ['turns', 'text']);
  const { turns = 'last', text = lastText } = options;
  // A regular expression with `g` or `y` would go on where the last text ended.
  const pattern = form instanceof RegExp ? new RegExp(form.source, form.flags.replaceAll(/[gy]/g, '')) : null;
  const hasForm = (candidate: string, trajectory: Trajectory): boolean =>
    pattern === null
      ? (form as (text: string, trajectory: Trajectory) => boolean)(candidate, trajectory)
      : pattern.test(candidate);
  return (trajectory) => {
    const texts = turns === 'all' ? sampledTexts(trajectory) : [text(trajectory)];
    return texts.length === 0 ? 0 : texts.filter((one) => hasForm(one, trajectory)).length / texts.length;
  };
}

/**
 * 1 if the text is JSON that follows the schema (of zod, or JSON Schema), `partial` (default 0) if it is other JSON, else 0.
 * A fence around the whole text is taken off. Throws ConfigError for a schema that zod cannot read.
 */
export function jsonSchemaReward<Scenario = unknown>(
  schema: z.ZodType | Readonly<Record<string, unknown>>,
  options: { readonly partial?: number } & Pick<TextOptions, 'text'> = {},
): SyncReward<Scenario> {
  refuseUnknownKeys('jsonSchemaReward', options, ['text', 'partial']);
  const { text = lastText, partial = 0 } = options;
  const checker = toZod(schema);
  return (trajectory) => {
    const given = text(trajectory).trim();
    const content = /^```\w*\s*\n(.*)\n```$/s.exec(given)?.[1] ?? given;
    let value: unknown;
    try {
      value = JSON.parse(content);
    } catch {
      return 0;
    }
    return checker.safeParse(value).success ? 1 : partial;
  };
}

function toZod(schema: z.ZodType | Readonly<Record<string, unknown>>): z.ZodType {
  if (schema instanceof z.ZodType) return schema;
  try {
    return z.fromJSONSchema(schema);
  } catch (error) {
    throw new ConfigError('jsonSchemaReward: schema must be one that zod reads', { cause: error });
  }
}
