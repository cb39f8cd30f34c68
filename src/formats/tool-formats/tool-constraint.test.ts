/** What a constraint allows, the parser reads: texts are drawn from the constraint and give the same names and arguments. */
import { describe, expect, test } from 'vitest';
import type { ToolChoice, ToolDefinition } from '../../core/chat.ts';
import type { JsonSchema, TextConstraint } from '../../core/constraint.ts';
import { createReplyParser } from '../reply-parser.ts';
import { toolConstraint } from './tool-constraint.ts';
import type { ToolFormat } from './tool-format.ts';

const formats: readonly ToolFormat[] = ['hermes', 'smollm', 'llama3_json', 'mistral', 'mistral_args', 'pythonic'];

const tool = (name: string, parameters: JsonSchema, isStrict = true): ToolDefinition => ({
  name,
  description: null,
  parameters,
  isStrict,
});
const text = { type: 'string' } as const;
const look = tool('look_up', {
  type: 'object',
  properties: { word: text, count: { type: 'integer' }, isOpen: { type: 'boolean' }, gone: { type: 'null' } },
  required: ['word', 'count'],
});
const all = tool('all-optional', { type: 'object', properties: { word: text, gone: { type: 'null' } } });
const none = tool('none', { type: 'object', properties: {} });
const open = tool('open', true);
const tools = [look, all, none, open];

/** Values by the kind of schema; awkward for every format's own quotes and brackets. */
const word = `"a'\\\n}]) </tool_call>;é😀`;
function sampleOf(schema: JsonSchema): unknown {
  if (typeof schema === 'boolean') return 1;
  if (schema.type === 'string') return word;
  if (schema.type === 'integer') return -3;
  if (schema.type === 'boolean') return true;
  if (schema.type === 'null') return null;
  const properties = Object.entries((schema.properties ?? {}) as Record<string, JsonSchema>);
  return Object.fromEntries(properties.map(([key, inner]) => [key, sampleOf(inner)]));
}

/** Every way the constraint offers once; of separated tags all in one text. */
function texts(constraint: TextConstraint): readonly string[] {
  switch (constraint.type) {
    case 'literal':
      return [constraint.text];
    case 'jsonSchema':
      return [JSON.stringify(sampleOf(constraint.schema))];
    case 'oneOf':
      return constraint.options.flatMap(texts);
    case 'sequence':
      return constraint.parts.reduce<readonly string[]>(
        (before, part) => before.flatMap((start) => texts(part).map((next) => start + next)),
        [''],
      );
    case 'tag':
      return texts(constraint.content).map((content) => constraint.begin + content + constraint.end);
    case 'separatedTags': {
      const each = constraint.tags.flatMap(texts);
      return constraint.isSingle ? each : [each.join(constraint.separator)];
    }
    case 'triggeredTags': {
      const each = constraint.tags.flatMap(texts);
      for (const written of each) expect(constraint.triggers.some((trigger) => written.startsWith(trigger))).toBe(true);
      return each;
    }
    default:
      throw new Error(constraint.type);
  }
}

function calls(format: ToolFormat, written: string): readonly { readonly name: string; readonly arguments: unknown }[] {
  const parser = createReplyParser({ toolFormat: format, toolNames: tools.map(({ name }) => name), reasoning: null });
  const deltas = [...parser.push(written), ...parser.finish()];
  expect(parser.malformedToolCalls, written).toBe(0);
  return deltas.map((delta) => {
    if (delta.type !== 'toolCall') throw new Error(`${delta.type} in ${written}`);
    return { name: delta.name as string, arguments: JSON.parse(delta.argumentsDelta) };
  });
}

const isEmptyOf = (constraint: TextConstraint | null): boolean =>
  JSON.stringify(constraint).includes('"type":"literal","text":""');

describe.each(formats)('%s', (format) => {
  test('several required calls in one reply', () => {
    const constraint = toolConstraint(format, tools, 'required', true) as TextConstraint;
    expect(isEmptyOf(constraint)).toBe(false);
    for (const written of texts(constraint)) {
      const found = calls(format, written);
      expect(new Set(found.map(({ name }) => name))).toEqual(new Set(tools.map(({ name }) => name)));
      expect(found).toContainEqual({ name: 'look_up', arguments: { word, count: -3, isOpen: true, gone: null } });
      expect(found).toContainEqual({ name: 'open', arguments: {} });
    }
  });

  test.each<ToolChoice>(['required', { name: 'look_up' }, { name: 'none' }])('one call: %j', (choice) => {
    const constraint = toolConstraint(format, tools, choice, false) as TextConstraint;
    for (const written of texts(constraint)) {
      const found = calls(format, written);
      expect(found).toHaveLength(1);
      if (typeof choice === 'object') expect(found[0]?.name).toBe(choice.name);
    }
  });

  test('strict tools constrain calls in free text, others leave it free', () => {
    const constraint = toolConstraint(format, tools, 'auto', true) as TextConstraint;
    expect(constraint).toMatchObject({ type: 'triggeredTags', isRequired: false, isSingle: false });
    expect(texts(constraint).flatMap((written) => calls(format, written)).length).toBeGreaterThanOrEqual(4);
    expect(toolConstraint(format, [{ ...look, isStrict: false }], 'auto', true)).toBeNull();
    expect(toolConstraint(format, tools, 'none', true)).toBeNull();
    const mixed = JSON.stringify(toolConstraint(format, [{ ...look, isStrict: false }, none], 'auto', true));
    expect(mixed).not.toContain('"count"');
  });
});
