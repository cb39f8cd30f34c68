/**
 * The forms in which policies call tools, by model family. Layer 1. A row each; `choose-format.ts` says which one a chat template means.
 * Source: the chat templates of the families, and vLLM's parsers of the same names.
 */
import type { ReasoningFormat } from '../reasoning-format.ts';
import type { CallReader, ReaderOptions } from './call-reader.ts';
import { type JsonCallSyntax, JsonCalls } from './json-calls.ts';
import { MistralCalls } from './mistral-calls.ts';
import { PythonCalls } from './python-calls.ts';

/** `mistral_args` is what newer models of Mistral write; either is read as the other. */
export type ToolFormat = 'hermes' | 'smollm' | 'llama3_json' | 'mistral' | 'mistral_args' | 'pythonic';

export interface ToolFormatRow {
  /** What calls begin with, anywhere in a reply. */
  readonly marks: readonly string[];
  /** Marks inside calls, and at their end. */
  readonly innerMarks: readonly string[];
  /** What calls without a mark begin with, at the start of a reply. */
  readonly opening: '{' | '[' | null;
  readonly createReader: (options: ReaderOptions) => CallReader;
}

const jsonRow = (
  marks: readonly string[],
  syntax: JsonCallSyntax,
  opening: ToolFormatRow['opening'] = null,
): ToolFormatRow => ({
  marks,
  innerMarks: syntax.end === null ? [] : [syntax.end],
  opening,
  createReader: (options) => new JsonCalls(syntax, options),
});

const mistralRow: ToolFormatRow = {
  marks: ['[TOOL_CALLS]'],
  innerMarks: ['[ARGS]', '[CALL_ID]'],
  opening: null,
  createReader: (options) => new MistralCalls(options),
};

export const toolFormats: { readonly [F in ToolFormat]: ToolFormatRow } = {
  hermes: jsonRow(['<tool_call>'], {
    shape: 'object',
    argumentKeys: ['arguments'],
    end: '</tool_call>',
    separator: null,
  }),
  smollm: jsonRow(['<tool_call>'], {
    shape: 'objectOrList',
    argumentKeys: ['arguments'],
    end: '</tool_call>',
    separator: null,
  }),
  llama3_json: jsonRow(
    ['<|python_tag|>'],
    { shape: 'object', argumentKeys: ['parameters', 'arguments'], end: null, separator: ';' },
    '{',
  ),
  mistral: mistralRow,
  mistral_args: mistralRow,
  pythonic: {
    marks: ['<|python_start|>', '<|python_tag|>'],
    innerMarks: ['<|python_end|>'],
    opening: '[',
    createReader: (options) => new PythonCalls(options, '<|python_end|>'),
  },
};

/**
 * Ids of the marks that are tokens of their own. Where a parser reads a reply their text must not be skipped, special or not.
 * `tokenId` is that of the tokenizer.
 */
export function markIds(
  tokenId: (content: string) => number | null,
  format: ToolFormat | null,
  reasoning: ReasoningFormat | null,
): ReadonlySet<number> {
  const marks = [
    ...(format === null ? [] : [...toolFormats[format].marks, ...toolFormats[format].innerMarks]),
    ...(reasoning === null ? [] : [reasoning.begin, reasoning.end]),
  ];
  return new Set(marks.map(tokenId).filter((id) => id !== null));
}
