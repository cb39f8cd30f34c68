/**
 * A text constraint as a structural tag of xgrammar, checked before it is compiled. Layer 3.
 * Schemas and expressions become grammars of our own; xgrammar joins them and follows free text up to triggers and ends of tags.
 */
import type { TagConstraint, TextConstraint } from '../../core/constraint.ts';
import { DataError } from '../../core/errors.ts';
import { Rules } from './ebnf.ts';
import { jsonSchemaToEbnf } from './json-schema.ts';
import { plainChar, regexToEbnf } from './regex.ts';

/** Format of a structural tag, JSON. */
type Format = Readonly<Record<string, unknown>>;

/** A compile blocks sampling, so what it works on is bounded. */
const MAX_BYTES = 65_536;
const MAX_DEPTH = 16;
/** Copies of their grammars. */
const MAX_ADJOINING_TAGS = 4;
const MAX_GRAMMAR_CHARACTERS = 400_000;
/** Rules and formats: the time of a compile rises with the square of their number. */
const MAX_PARTS = 1_500;

export interface StructuralTag {
  /** JSON text of the structural tag; equal constraints have equal ones. */
  readonly text: string;
  /** What must be spelt letter by letter: special tokens in it may be sampled. */
  readonly literals: readonly string[];
}

/** Throws DataError that names the part which cannot be met. */
export function toStructuralTag(constraint: TextConstraint): StructuralTag {
  const bytes = Buffer.byteLength(JSON.stringify(constraint) ?? '');
  if (bytes > MAX_BYTES) throw new DataError(`constraint: must have at most ${MAX_BYTES} bytes as JSON, got ${bytes}`);
  const writer = new TagWriter();
  const format = writer.write(constraint, 'constraint', 0);
  const text = JSON.stringify({ type: 'structural_tag', format });
  if (text.length > MAX_GRAMMAR_CHARACTERS) {
    throw new DataError(
      `constraint: its grammar must have at most ${MAX_GRAMMAR_CHARACTERS} characters, got ${text.length}`,
    );
  }
  const parts = text.match(/ ::= |"type":/g)?.length ?? 0;
  if (parts > MAX_PARTS) {
    throw new DataError(
      `constraint: its grammar must have at most ${MAX_PARTS} parts, got ${parts}; fewer properties, options or tools have fewer`,
    );
  }
  return { text, literals: writer.literals };
}

class TagWriter {
  readonly literals: string[] = [];

  write(constraint: TextConstraint, path: string, depth: number): Format {
    if (depth > MAX_DEPTH) throw new DataError(`${path}: must be at most ${MAX_DEPTH} levels deep`);
    switch (constraint.type) {
      case 'anyText':
        return { type: 'any_text' };
      case 'literal':
        return { type: 'const_string', value: this.#literal(constraint.text, `${path}.text`) };
      case 'jsonSchema':
        return { type: 'grammar', grammar: jsonSchemaToEbnf(constraint.schema, `${path}.schema`) };
      case 'regex': {
        const options = { match: 'whole', writeChar: plainChar, path: `${path}.pattern` } as const;
        const rules = new Rules();
        return { type: 'grammar', grammar: rules.grammar(regexToEbnf(rules, constraint.pattern, options)) };
      }
      case 'sequence':
        return { type: 'sequence', elements: this.#sequence(constraint.parts, `${path}.parts`, depth) };
      case 'oneOf':
        return { type: 'or', elements: this.#options(constraint.options, `${path}.options`, depth) };
      case 'tag':
        return this.#tag(constraint, path, depth);
      case 'triggeredTags':
      case 'separatedTags':
        return this.#tags(constraint, path, depth);
      default:
        throw new DataError(
          `${path}.type: must be a known constraint, got ${String((constraint as { type: unknown }).type)}`,
        );
    }
  }

  #literal(text: string, path: string): string {
    if (text === '') throw new DataError(`${path}: must have at least one character, got ''`);
    this.literals.push(text);
    return text;
  }

  #parts(parts: readonly TextConstraint[], path: string, depth: number): Format[] {
    if (parts.length === 0) throw new DataError(`${path}: must be at least one, got none`);
    return parts.map((part, i) => this.write(part, `${path}.${i}`, depth + 1));
  }

  #sequence(parts: readonly TextConstraint[], path: string, depth: number): Format[] {
    const early = parts.slice(0, -1).findIndex(isOpenEnded);
    if (early >= 0)
      throw new DataError(`${path}.${early}: must end by itself, as something follows, got ${parts[early]!.type}`);
    return this.#parts(parts, path, depth);
  }

  #options(options: readonly TextConstraint[], path: string, depth: number): Format[] {
    const open = options.filter(isOpenEnded).length;
    if (open > 0 && open < options.length) {
      throw new DataError(
        `${path}: must all end by themselves, or none of them, got ${open} of ${options.length} that do not`,
      );
    }
    return this.#parts(options, path, depth);
  }

  #tag({ begin, content, end }: TagConstraint, path: string, depth: number): Format {
    if (begin !== '') this.literals.push(begin);
    if (end !== '') this.literals.push(end);
    else if (isOpenEnded(content))
      throw new DataError(`${path}.end: must have a character after ${content.type}, got ''`);
    return { type: 'tag', begin, content: this.write(content, `${path}.content`, depth + 1), end };
  }

  #tags(
    constraint: Extract<TextConstraint, { type: 'triggeredTags' | 'separatedTags' }>,
    path: string,
    depth: number,
  ): Format {
    const { tags, isRequired, isSingle } = constraint;
    if (tags.length === 0) throw new DataError(`${path}.tags: must be at least one, got none`);
    const rest = {
      tags: tags.map((tag, i) => this.#tag(tag, `${path}.tags.${i}`, depth + 1)),
      at_least_one: isRequired,
      stop_after_first: isSingle,
    };
    if (constraint.type === 'separatedTags') {
      if (constraint.separator === '' && isRequired) return adjoining(rest.tags, isSingle ? 1 : MAX_ADJOINING_TAGS);
      return {
        type: 'tags_with_separator',
        separator: this.#literal(constraint.separator, `${path}.separator`),
        ...rest,
      };
    }
    const { triggers } = constraint;
    for (const [i, tag] of tags.entries()) {
      const count = triggers.filter((trigger) => trigger !== '' && tag.begin.startsWith(trigger)).length;
      if (count !== 1)
        throw new DataError(`${path}.tags.${i}.begin: must begin with exactly one of the triggers, got ${count}`);
    }
    return { type: 'triggered_tags', triggers, ...rest };
  }
}

/** One tag to `most`, without anything between them: xgrammar has no separated tags without a separator. */
function adjoining(tags: readonly Format[], most: number): Format {
  const one: Format = { type: 'or', elements: tags };
  const lists = Array.from({ length: most }, (_, i) => Array.from({ length: i + 1 }, () => one));
  return { type: 'or', elements: lists.map((elements) => ({ type: 'sequence', elements })) };
}

/** Whether the text may go on without end, so that nothing can follow. */
function isOpenEnded(constraint: TextConstraint): boolean {
  switch (constraint.type) {
    case 'anyText':
      return true;
    case 'sequence':
      return constraint.parts.length > 0 && isOpenEnded(constraint.parts.at(-1)!);
    case 'oneOf':
      return constraint.options.some(isOpenEnded);
    case 'triggeredTags':
    case 'separatedTags':
      return !constraint.isSingle;
    default:
      return false;
  }
}
