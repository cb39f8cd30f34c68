/**
 * Renders Jinja templates as Python's jinja2 does in transformers. Layer 1. `@huggingface/jinja` reads the text of a template; what it
 * says is evaluated here, since the library's own evaluator differs from Python: scopes of loops, `strip(characters)`, `map`, what
 * values print as, what they equal, floats and large integers in JSON, positions in text beyond the BMP.
 * Source: jinja2 3.1 (ImmutableSandboxedEnvironment), transformers utils/chat_template_utils.py.
 * A rendering has a budget (`jinja-budget.ts`), and values are Python's alone: no property of a JavaScript object can be reached.
 * Left out, and refused when the template is compiled: tests with arguments, recursive loops, includes and imports.
 */
import { parse, tokenize } from '@huggingface/jinja';
import { DataError, messageOf } from '../core/errors.ts';
import { startBudget } from './jinja-budget.ts';
import { Evaluator, type Node } from './jinja-evaluate.ts';
import { checkFilter, checkTest } from './jinja-filters.ts';
import { templateError, toValue, type Value } from './jinja-values.ts';

/** Text of the template for the given variables, which are plain data. Throws DataError with the template's own message. */
export type JinjaTemplate = (variables: Readonly<Record<string, unknown>>, now?: Date) => string;

/** Characters; the longest templates of models have some ten thousand. */
const maxSource = 2 ** 20;

/** Throws DataError if the template does not compile. */
export function compileJinja(source: string): JinjaTemplate {
  startBudget();
  const program = parseProgram(source);
  return (variables, now = new Date()) => {
    startBudget();
    const values = Object.entries(variables).map(([name, value]): [string, Value] => [name, toValue(value)]);
    try {
      return new Evaluator(now).render(program, new Map(values));
    } catch (cause) {
      if (cause instanceof DataError) throw cause;
      throw new DataError(`chat template: ${messageOf(cause)}`, { cause });
    }
  };
}

function parseProgram(source: string): Node {
  if (source.length > maxSource) {
    throw new DataError(`chat template: must have at most ${maxSource} characters, got ${source.length}`);
  }
  try {
    // Jinja reads every end of line as a newline.
    const tokens = tokenize(source.replaceAll(/\r\n?/g, '\n'), { trim_blocks: true, lstrip_blocks: true });
    const program = parse(tokens) as unknown as Node;
    checkNames(program);
    return program;
  } catch (cause) {
    if (cause instanceof DataError) throw cause;
    throw new DataError(`chat template: must compile, got ${messageOf(cause)}`, { cause });
  }
}

/** Unknown filters and tests are errors before the first rendering, as in jinja2. */
function checkNames(node: unknown): void {
  if (node instanceof Map) for (const pair of node) checkNames(pair);
  else if (Array.isArray(node)) node.forEach(checkNames);
  else if (typeof node === 'object' && node !== null) {
    const { type, filter, test } = node as Partial<Node>;
    if (type === 'FilterExpression' || type === 'FilterStatement') checkFilter(filterName(filter as Node));
    if (type === 'TestExpression') checkTest((test as Node).value as string);
    Object.values(node).forEach(checkNames);
  }
}

function filterName(filter: Node): string {
  const name = filter.type === 'CallExpression' ? (filter.callee as Node).value : filter.value;
  if (typeof name === 'string') return name;
  throw templateError('must compile, got a filter without a name');
}
