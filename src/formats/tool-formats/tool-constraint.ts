/** Tool choices as constraints on the sampled text, in the form that the policy was trained on and `reply-parser.ts` reads. Layer 1. */
import type { ToolChoice, ToolDefinition } from '../../core/chat.ts';
import type { JsonSchema, TagConstraint, TextConstraint } from '../../core/constraint.ts';
import type { ToolFormat } from './tool-format.ts';

/** Each optional argument doubles the ways to write a call. */
const maxOptional = 5;

type Schema = Readonly<Record<string, unknown>>;

/**
 * Null if the text is free: `none`, and `auto` without strict tools. A call that is required, or of a named tool, is held to the
 * schema of its tool; with `auto` those of strict tools are.
 */
export function toolConstraint(
  format: ToolFormat,
  tools: readonly ToolDefinition[],
  choice: ToolChoice,
  isParallel: boolean,
): TextConstraint | null {
  const isFree = choice === 'none' || (choice === 'auto' && !tools.some((tool) => tool.isStrict));
  const callable = typeof choice === 'string' ? tools : tools.filter((tool) => tool.name === choice.name);
  if (isFree || callable.length === 0) return null;
  const schemaOf = (tool: ToolDefinition): Schema =>
    choice !== 'auto' || tool.isStrict ? objectSchema(tool.parameters) : { type: 'object' };
  const { trigger, around, tag, separator } = syntaxes[format];
  const tags = callable.map((tool) => tag(tool.name, schemaOf(tool)));
  // A named choice is one call, as OpenAI has it.
  const isSingle = !isParallel || typeof choice !== 'string';
  const calls: TextConstraint = { type: 'separatedTags', tags, separator, isRequired: true, isSingle };
  if (choice !== 'auto') return around === null ? calls : { type: 'tag', ...around, content: calls };
  const begun: readonly TagConstraint[] = around === null ? tags : [{ type: 'tag', ...around, content: calls }];
  return { type: 'triggeredTags', triggers: [trigger], tags: begun, isRequired: false, isSingle };
}

interface CallSyntax {
  /** What every call, or the text around them, begins with. */
  readonly trigger: string;
  /** Text around all calls; null if there is none. */
  readonly around: { readonly begin: string; readonly end: string } | null;
  readonly tag: (name: string, schema: Schema) => TagConstraint;
  readonly separator: string;
}

const jsonTag =
  (begin: string, key: string, end: string): CallSyntax['tag'] =>
  (name, schema) => ({
    type: 'tag',
    begin: `${begin}{"name": ${JSON.stringify(name)}, "${key}": `,
    content: { type: 'jsonSchema', schema },
    end: `}${end}`,
  });

const syntaxes: { readonly [F in ToolFormat]: CallSyntax } = {
  hermes: {
    trigger: '<tool_call>',
    around: null,
    tag: jsonTag('<tool_call>\n', 'arguments', '\n</tool_call>'),
    separator: '\n',
  },
  smollm: {
    trigger: '<tool_call>',
    around: { begin: '<tool_call>[\n', end: '\n]</tool_call>' },
    tag: jsonTag('', 'arguments', ''),
    separator: ',\n',
  },
  llama3_json: { trigger: '{"name": ', around: null, tag: jsonTag('', 'parameters', ''), separator: '; ' },
  mistral: {
    trigger: '[TOOL_CALLS]',
    around: { begin: '[TOOL_CALLS] [', end: ']' },
    tag: jsonTag('', 'arguments', ''),
    separator: ', ',
  },
  mistral_args: {
    trigger: '[TOOL_CALLS]',
    around: null,
    tag: (name, schema) => ({
      type: 'tag',
      begin: `[TOOL_CALLS]${name}[ARGS]`,
      content: { type: 'jsonSchema', schema },
      end: '',
    }),
    // Grammars take no empty separator.
    separator: ' ',
  },
  pythonic: { trigger: '[', around: { begin: '[', end: ']' }, tag: pythonTag, separator: ', ' },
};

/** Arguments are an object, whatever else their schema says. */
function objectSchema(schema: JsonSchema): Schema {
  return { ...(typeof schema === 'boolean' ? {} : schema), type: 'object' };
}

/**
 * `name(a=…, b=…)`, with required arguments first; JSON is read as Python here. Where the schema is more than a few properties, the
 * arguments are one dict: `name(**{…})`.
 */
function pythonTag(name: string, schema: Schema): TagConstraint {
  const properties = Object.entries((schema.properties ?? {}) as Readonly<Record<string, JsonSchema>>);
  const required = new Set((schema.required ?? []) as readonly string[]);
  const isListed = Object.keys(schema).every((key) => describing.has(key)) && schema.additionalProperties !== true;
  const optional = properties.filter(([key]) => !required.has(key));
  const isNamed =
    properties.every(([key]) => /^[A-Za-z_]\w*$/.test(key)) && required.size === properties.length - optional.length;
  if (!isListed || !isNamed || properties.length === 0 || optional.length > maxOptional) {
    return { type: 'tag', begin: `${name}(**`, content: { type: 'jsonSchema', schema }, end: ')' };
  }
  const definitions = Object.fromEntries(
    Object.entries(schema).filter(([key]) => key === '$defs' || key === 'definitions'),
  );
  const options = subsets(optional).map((chosen) =>
    keywords([...properties.filter(([key]) => required.has(key)), ...chosen], definitions),
  );
  const written = options.filter((option) => option !== null);
  // Nothing between the parentheses is no text, so that the tag of a call without arguments would be empty.
  const content: TextConstraint = {
    type: 'oneOf',
    options: written.map((option) => ({ type: 'sequence', parts: option })),
  };
  if (written.length === options.length) return { type: 'tag', begin: `${name}(`, content, end: ')' };
  const closed: TextConstraint[] = written.map((option) => ({
    type: 'sequence',
    parts: [...option, { type: 'literal', text: ')' }],
  }));
  return {
    type: 'tag',
    begin: `${name}(`,
    content: { type: 'oneOf', options: [{ type: 'literal', text: ')' }, ...closed] },
    end: '',
  };
}

/** What a schema may say besides that certain properties exist. */
const describing = new Set([
  'type',
  'properties',
  'required',
  'additionalProperties',
  'title',
  'description',
  '$schema',
  '$defs',
  'definitions',
]);

type Property = readonly [string, JsonSchema];

function subsets(properties: readonly Property[]): readonly (readonly Property[])[] {
  const [first, ...others] = properties;
  if (first === undefined) return [[]];
  const rest = subsets(others);
  return [...rest, ...rest.map((chosen) => [first, ...chosen])];
}

/** Null if there are none. */
function keywords(properties: readonly Property[], definitions: Schema): readonly TextConstraint[] | null {
  if (properties.length === 0) return null;
  return properties.flatMap(([key, schema], index): TextConstraint[] => [
    { type: 'literal', text: `${index === 0 ? '' : ', '}${key}=` },
    { type: 'jsonSchema', schema: typeof schema === 'boolean' ? schema : { ...schema, ...definitions } },
  ]);
}
