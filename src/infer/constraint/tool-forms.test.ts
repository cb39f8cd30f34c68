/** Required tools in the form of every family: what is sampled from noise is read back as calls. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { sampleNoise } from '../../../test/noise-sampler.ts';
import { createReplyParser } from '../../formats/reply-parser.ts';
import { createTokenizer } from '../../formats/tokenizer.ts';
import { toolConstraint } from '../../formats/tool-formats/tool-constraint.ts';
import { type ToolFormat, toolFormats } from '../../formats/tool-formats/tool-format.ts';
import { Grammars } from './grammars.ts';

const file = new URL('../../../test/fixtures/tokenizers/qwen.json', import.meta.url);
const tokenizer = createTokenizer(JSON.parse(readFileSync(file, 'utf8')));
const stopIds = [...tokenizer.specialIds].slice(-1);
const parameters = {
  type: 'object',
  properties: { city: { enum: ['Bern', 'Rome'] } },
  required: ['city'],
  additionalProperties: false,
};
const tools = ['weather', 'forecast'].map((name) => ({ name, description: null, parameters, isStrict: true }));

test.each(
  (Object.keys(toolFormats) as ToolFormat[]).flatMap((format) => [
    [format, 'required', true] as const,
    [format, 'required', false] as const,
    [format, 'auto', true] as const,
  ]),
)('%s, %s, parallel: %s', async (format, choice, isParallel) => {
  const constraint = toolConstraint(format, tools, choice, isParallel);
  if (constraint === null) throw new Error('strict tools are constrained');
  const grammars = new Grammars(tokenizer, tokenizer.vocabSize);
  const { text, isEnded } = await sampleNoise(grammars, tokenizer, constraint, { seed: 1, stopIds });
  if (!isParallel) expect(isEnded).toBe(true);
  if (choice === 'auto' || !isEnded) return;
  const parser = createReplyParser({ toolFormat: format, toolNames: tools.map(({ name }) => name), reasoning: null });
  const deltas = [...parser.push(text), ...parser.finish()];
  expect(deltas.filter(({ type }) => type === 'text')).toEqual([]);
  expect(deltas.length).toBeGreaterThan(0);
  expect(parser.malformedToolCalls).toBe(0);
});
