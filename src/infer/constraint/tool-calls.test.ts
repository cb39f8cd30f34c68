/** Required calls, sampled from noise under their constraint, are calls that the parser of the format reads, with arguments by the schema. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { sampleNoise } from '../../../test/noise-sampler.ts';
import type { ToolDefinition } from '../../core/chat.ts';
import type { TextConstraint } from '../../core/constraint.ts';
import { createReplyParser } from '../../formats/reply-parser.ts';
import { createTokenizer } from '../../formats/tokenizer.ts';
import { toolConstraint } from '../../formats/tool-formats/tool-constraint.ts';
import { type ToolFormat, toolFormats } from '../../formats/tool-formats/tool-format.ts';
import { Grammars } from './grammars.ts';

const file = new URL('../../../test/fixtures/tokenizers/qwen.json', import.meta.url);
const tokenizer = createTokenizer(JSON.parse(readFileSync(file, 'utf8')));
const grammars = new Grammars(tokenizer, tokenizer.vocabSize);
const stopIds = [...tokenizer.specialIds].slice(-1);

const tools: readonly ToolDefinition[] = [
  {
    name: 'move',
    description: null,
    isStrict: true,
    parameters: {
      type: 'object',
      properties: {
        to: { enum: ['left', "it's"] },
        steps: { type: 'integer', minimum: 1, maximum: 9 },
        isFast: { type: 'boolean' },
      },
      required: ['to', 'steps'],
      additionalProperties: false,
    },
  },
  {
    name: 'stop',
    description: null,
    isStrict: true,
    parameters: { type: 'object', properties: {}, additionalProperties: false },
  },
];

test.each(Object.keys(toolFormats) as ToolFormat[])('%s', async (format) => {
  const constraint = toolConstraint(format, tools, 'required', false) as TextConstraint;
  const names = new Set<string>();
  for (let seed = 0; seed < 12; seed++) {
    const { text, isEnded } = await sampleNoise(grammars, tokenizer, constraint, { seed, stopIds });
    expect(isEnded, text).toBe(true);
    const parser = createReplyParser({ toolFormat: format, toolNames: ['move', 'stop'], reasoning: null });
    const deltas = [...parser.push(text), ...parser.finish()];
    expect(deltas, text).toHaveLength(1);
    const [call] = deltas;
    if (call?.type !== 'toolCall') throw new Error(`no call: ${text}`);
    names.add(call.name as string);
    const { to, steps, isFast, ...more } = JSON.parse(call.argumentsDelta) as Record<string, unknown>;
    expect(more, text).toEqual({});
    if (call.name !== 'move') continue;
    expect(['left', "it's"], text).toContain(to);
    expect(Number(steps) >= 1 && Number(steps) <= 9, text).toBe(true);
    expect(['boolean', 'undefined'], text).toContain(typeof isFast);
  }
  expect(names).toEqual(new Set(['move', 'stop']));
});
