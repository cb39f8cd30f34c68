/** Replies of every format: however the text is cut, the deltas join to the same reply, and what is no call stays text. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createReplyParser, type ReplyDelta, type ReplyParserOptions } from './reply-parser.ts';
import type { ToolFormat } from './tool-formats/tool-format.ts';

const think = { begin: '<think>', end: '</think>' };

interface Reply {
  text: string;
  reasoning: string;
  readonly calls: { id?: string; name: string; arguments: string }[];
  malformed: number;
}

function parse(pieces: readonly string[], options: Partial<ReplyParserOptions>): Reply {
  const parser = createReplyParser({ toolFormat: null, toolNames: ['f', 'look_up'], reasoning: null, ...options });
  const reply: Reply = { text: '', reasoning: '', calls: [], malformed: 0 };
  for (const piece of pieces) for (const delta of parser.push(piece)) add(reply, delta);
  for (const delta of parser.finish()) add(reply, delta);
  return { ...reply, malformed: parser.malformedToolCalls };
}

function add(reply: Reply, delta: ReplyDelta): void {
  if (delta.type !== 'toolCall') {
    reply[delta.type] += delta.text;
    return;
  }
  const { index, id, name, argumentsDelta } = delta;
  if (name !== undefined) {
    expect(index).toBe(reply.calls.length);
    reply.calls.push({ ...(id !== undefined && { id }), name, arguments: argumentsDelta });
  } else (reply.calls[index] as Reply['calls'][number]).arguments += argumentsDelta;
}

/** A reply in which nothing but a text is found. */
const onlyText = (text: string, malformed = 0): Reply => ({ text, reasoning: '', calls: [], malformed });
const called = (...calls: Reply['calls']): Reply => ({ text: '', reasoning: '', calls, malformed: 0 });

interface Sample {
  readonly format: ToolFormat;
  readonly text: string;
  readonly reply: Reply;
}

const samples: readonly Sample[] = [
  {
    format: 'hermes',
    text: '<tool_call>\n{"name": "look_up", "arguments": {"at": 1.0, "s": "a \\"}</tool_call>"}}\n</tool_call>',
    reply: called({ name: 'look_up', arguments: '{"at": 1.0, "s": "a \\"}</tool_call>"}' }),
  },
  {
    format: 'hermes',
    text: 'Let me see.\n<tool_call>{"arguments": {}, "name": "f"}</tool_call>\n<tool_call>\n{"name": "x", "arguments": {"a" : [1, {}]} }',
    reply: {
      ...called({ name: 'f', arguments: '{}' }, { name: 'x', arguments: '{"a" : [1, {}]}' }),
      text: 'Let me see.',
    },
  },
  {
    format: 'hermes',
    text: ' <tool_call>{"name": "f", "arguments": {}}</tool_call> and more \n',
    reply: { ...called({ name: 'f', arguments: '{}' }), text: ' and more \n' },
  },
  ...[
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}',
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>',
    "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
    '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>\n',
    '<tool_call>{"name": "f"}</tool_call>',
    '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>',
    '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
    '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>',
    '\n<tool_call>{"name": "f", "arguments": {}} </tool_cal',
    '<tool_call></tool_call>',
    'a  <tool_call>',
  ].map((text) => ({ format: 'hermes' as const, text, reply: onlyText(text, 1) })),
  ...['', ' \n', 'a < b <tool <tool_cal', '{"name": "f"}', '</tool_call> \n'].map((text) => ({
    format: 'hermes' as const,
    text,
    reply: onlyText(text),
  })),
  {
    format: 'hermes',
    text: '<tool_call>{"name": "f", <tool_call>{"name": "f", "arguments": {}}</tool_call>',
    reply: { ...called({ name: 'f', arguments: '{}' }), text: '<tool_call>{"name": "f",', malformed: 1 },
  },
  {
    format: 'smollm',
    text: '<tool_call>[\n{"name": "f", "arguments": {"a": "1"}},\n{"name": "look_up", "arguments": {}}\n]</tool_call>',
    reply: called({ name: 'f', arguments: '{"a": "1"}' }, { name: 'look_up', arguments: '{}' }),
  },
  {
    format: 'smollm',
    text: '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    reply: called({ name: 'f', arguments: '{}' }),
  },
  { format: 'smollm', text: '<tool_call>[]</tool_call>', reply: onlyText('<tool_call>[]</tool_call>') },
  {
    format: 'smollm',
    text: '<tool_call>[{"name": "f", "arguments": {}}, {"name": "f"',
    reply: onlyText('<tool_call>[{"name": "f", "arguments": {}}, {"name": "f"', 1),
  },
  {
    format: 'llama3_json',
    text: '{"name": "f", "parameters": {"a": null}}',
    reply: called({ name: 'f', arguments: '{"a": null}' }),
  },
  {
    format: 'llama3_json',
    text: '<|python_tag|>{"type": "function", "name": "f", "parameters": {}} ; {"name": "x", "arguments": {}};',
    reply: called({ name: 'f', arguments: '{}' }, { name: 'x', arguments: '{}' }),
  },
  ...['{"answer": 42}', '{"name": "Ada", "parameters": {}}', ' {} ', '[1] is'].map((text) => ({
    format: 'llama3_json' as const,
    text,
    reply: onlyText(text),
  })),
  {
    format: 'mistral',
    text: 'Wait. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}, {"name": "x", "arguments": {}}]',
    reply: {
      ...called({ id: 'abcdefgh1', name: 'f', arguments: '{"a": 1}' }, { name: 'x', arguments: '{}' }),
      text: 'Wait.',
    },
  },
  {
    format: 'mistral_args',
    text: '[TOOL_CALLS]f[ARGS]{"a": "}"}[TOOL_CALLS]look_up[CALL_ID]abcdefgh2[ARGS] {}[TOOL_CALLS]x{"b" : 2}',
    reply: called(
      { name: 'f', arguments: '{"a": "}"}' },
      { id: 'abcdefgh2', name: 'look_up', arguments: '{}' },
      { name: 'x', arguments: '{"b" : 2}' },
    ),
  },
  ...[
    '[TOOL_CALLS]',
    '[TOOL_CALLS] f[ARGS]{"a"',
    '[TOOL_CALLS]f, g{}',
    '[TOOL_CALLS][{"name": "f", "arguments": {}}',
    '[TOOL_CALLS]{"a": 1}',
  ].map((text) => ({ format: 'mistral' as const, text, reply: onlyText(text, 1) })),
  {
    format: 'pythonic',
    text: `[f(a=1, b="x\\n'\\u00e9", c=[1., -2, (True, None)], d={'k': .5e3, "l": {}},), look_up()] `,
    reply: called(
      {
        name: 'f',
        arguments: '{"a": 1, "b": "x\\n\'é", "c": [1.0, -2, [true, null]], "d": {"k": 0.5e3, "l": {}}}',
      },
      { name: 'look_up', arguments: '{}' },
    ),
  },
  {
    format: 'pythonic',
    text: "<|python_start|>[x(a='\\x41\\U0001f600\\q')]<|python_end|>",
    reply: called({ name: 'x', arguments: '{"a": "A😀\\\\q"}' }),
  },
  ...['[1] is', '[g(a=1)]', '[]', '[f, f]', '[f]'].map((text) => ({
    format: 'pythonic' as const,
    text,
    reply: onlyText(text),
  })),
  ...[
    '[f(1)]',
    '[f(a=1, a=2)]',
    '[f(a=g)]',
    '[f(a=01)]',
    '[f(a="x)]',
    '[f(a=1)] and more',
    '[f(a={1: 2})]',
    '[f(a=1',
  ].map((text) => ({ format: 'pythonic' as const, text, reply: onlyText(text, 1) })),
  ...[
    '{"name": "f", "parameters": {}} and more',
    '{"name": "f", "parameters": {}, "arguments": {}}',
    '{"name": "f", "parameters": {"a',
    '<|python_tag|>search.call(query="x")',
  ].map((text) => ({ format: 'llama3_json' as const, text, reply: onlyText(text, 1) })),
];

describe.each(samples)('$format: $text', ({ format, text, reply }) => {
  test('whole, in two pieces at every place, and character by character', () => {
    expect(parse([text], { toolFormat: format })).toEqual(reply);
    expect(parse([...text], { toolFormat: format })).toEqual(reply);
    for (let at = 1; at < text.length; at++) {
      expect(parse([text.slice(0, at), text.slice(at)], { toolFormat: format }), `cut at ${at}`).toEqual(reply);
    }
  });

  test('arguments that are streamed are the same however the text is cut', () => {
    const options = { toolFormat: format, isArgumentStreamed: true };
    const whole = parse([text], options);
    // An id behind the arguments comes too late for the first delta.
    if (format === 'mistral') for (const call of reply.calls) delete call.id;
    if (reply.malformed === 0) expect(whole).toEqual(reply);
    else expect(whole.malformed).toBe(reply.malformed);
    expect(parse([...text], options)).toEqual(whole);
    for (let at = 1; at < text.length; at++) {
      expect(parse([text.slice(0, at), text.slice(at)], options), `cut at ${at}`).toEqual(whole);
    }
  });
});

describe('reasoning', () => {
  const call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>';
  test.each([
    ['<think>\nso\n</think>\n\nyes', { reasoning: 'so', text: 'yes' }],
    ['\n<think>so</think>yes \n', { reasoning: 'so', text: 'yes \n' }],
    ['<think>\n\n</think>\n\nyes', { text: 'yes' }],
    ['<think>a <b> </thin', { reasoning: 'a <b> </thin' }],
    ['<think>cut \n', { reasoning: 'cut' }],
    [`<think>${call}</think>\n${call}`, { reasoning: call, calls: [{ name: 'f', arguments: '{}' }] }],
    ['yes <think>no</think>', { text: 'yes <think>no</think>' }],
    [' <thin', { text: ' <thin' }],
    [' yes', { text: ' yes' }],
  ])('%j', (text, reply) => {
    const options = { toolFormat: 'hermes', reasoning: think } as const;
    expect(parse([text], options)).toEqual({ ...onlyText(''), ...reply });
    expect(parse([...text], options)).toEqual({ ...onlyText(''), ...reply });
  });

  test.each([
    ['so\n</think>\n\nyes', { reasoning: 'so', text: 'yes' }],
    ['<think>\nso</think>', { reasoning: 'so' }],
    ['so <think', { reasoning: 'so <think' }],
  ])('begun by the prompt: %j', (text, reply) => {
    const options = { reasoning: think, isReasoningOpen: true };
    expect(parse([text], options)).toEqual({ ...onlyText(''), ...reply });
    expect(parse([...text], options)).toEqual({ ...onlyText(''), ...reply });
  });
});

test('without tools, or without their format, the text is the reply', () => {
  const text = ' <tool_call>{"name": "f", "arguments": {}}</tool_call> \n';
  expect(parse([text], { toolFormat: 'hermes', toolNames: [] })).toEqual(onlyText(text));
  expect(parse([...text], { toolFormat: null })).toEqual(onlyText(text));
});

const formats: readonly ToolFormat[] = ['hermes', 'smollm', 'llama3_json', 'mistral', 'mistral_args', 'pythonic'];
/** Pieces of calls, put together without sense. */
const junk = fc.array(
  fc.constantFrom(
    ...[
      '<tool_call>',
      '</tool_call>',
      '<|python_tag|>',
      '[TOOL_CALLS]',
      '[ARGS]',
      '<think>',
      '</think>',
      '{"name": "f", "arguments": {"a": 1}}',
    ],
    ...[
      '{',
      '}',
      '[',
      ']',
      '"',
      '\\',
      ':',
      ',',
      ';',
      ' ',
      '\n',
      'name',
      '"name"',
      '"arguments"',
      '1',
      'f',
      'true',
      '<',
    ],
  ),
  { maxLength: 24 },
);

test.each(formats)('%s: any text, cut anywhere, gives the same reply', (format) => {
  fc.assert(
    fc.property(
      junk,
      fc.array(fc.nat(40), { maxLength: 6 }),
      fc.boolean(),
      fc.boolean(),
      (parts, cuts, isOpen, isStreamed) => {
        const text = parts.join('');
        const options = {
          toolFormat: format,
          reasoning: think,
          isReasoningOpen: isOpen,
          isArgumentStreamed: isStreamed,
        };
        const places = [...new Set(cuts)].sort((a, b) => a - b);
        const pieces = [...places, text.length].map((end, index) => text.slice(places[index - 1] ?? 0, end));
        const whole = parse([text], options);
        expect(parse(pieces, options)).toEqual(whole);
        expect(parse([...text], options)).toEqual(whole);
      },
    ),
    { numRuns: 500, seed: 1 },
  );
});

const nested = '<tool_call>{"name": "f", "arguments": {"a": ';

test.each(formats)(
  '%s: a megabyte of brackets, marks, spaces or quotes takes linear time',
  (format) => {
    const units = ['[', '{"a":', '<tool_call>', `${nested}[`, ' ', '"', '\\', '[TOOL_CALLS]', '<think>', '[f(a='];
    const seconds = (isArgumentStreamed: boolean): number => {
      const started = performance.now();
      for (const unit of units) {
        const size = unit.length < 6 ? 2 ** 20 : 2 ** 17;
        const text = (unit.startsWith('[') ? '' : nested) + unit.repeat(size / unit.length);
        const options = { toolFormat: format, reasoning: think, isArgumentStreamed };
        parse([text], options);
        parse(text.slice(0, 2 ** 16).match(/[\s\S]{1,7}/g) ?? [], options);
      }
      return (performance.now() - started) / 1000;
    };
    // A quadratic step would take minutes.
    expect(seconds(false)).toBeLessThan(20);
    expect(seconds(true)).toBeLessThan(20);
  },
  60_000,
);
