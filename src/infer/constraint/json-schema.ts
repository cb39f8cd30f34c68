/**
 * JSON schemas as EBNF: every text of the grammar is JSON that the schema admits. Layer 3. Source: JSON Schema 2020-12.
 * Not xgrammar's own converter: it ignores some keywords (required names without a schema, `uniqueItems`, …) and writes others wrong
 * (number ranges, quotes in patterns). Here a keyword that is not enforced is refused by name.
 * The texts are fewer than the schema admits: properties in the schema's order, no additional ones where `properties` is given and
 * `additionalProperties` is not, all of `prefixItems`, white space only as one space or a new line with up to 20 of indentation.
 */
import type { JsonSchema } from '../../core/constraint.ts';
import { DataError } from '../../core/errors.ts';
import { complement, literal, Rules, repeat } from './ebnf.ts';
import { anyNumberOf, anyOfTexts, charClass, charOptions, oneText } from './finite.ts';
import { checkKeywords, isDisjoint, resolvePointer, type SchemaObject, typesOf } from './json-schema-keywords.ts';
import { anyInteger, anyNumber, type Bounds, numberRange } from './number-ranges.ts';
import { jsonChar, regexToEbnf } from './regex.ts';
import { stringFormats } from './string-formats.ts';

const MAX_DEPTH = 32;

/** What stands at a place of the schema, and which references lead there without any text between. */
interface Place {
  readonly path: string;
  readonly depth: number;
  readonly open: readonly string[];
}

/** A grammar with the rule `root`. Throws DataError that names the keyword, under `path`, which cannot be met. */
export function jsonSchemaToEbnf(schema: JsonSchema, path: string): string {
  return new SchemaWriter(schema, path).write();
}

class SchemaWriter {
  readonly #document: JsonSchema;
  readonly #path: string;
  readonly #rules = new Rules();
  readonly #references = new Map<string, string>();
  readonly #space: string;
  readonly #char: string;
  /** The rest of a string of any length, from behind its first quote. */
  readonly #rest: string;
  #any: string | null = null;

  constructor(document: JsonSchema, path: string) {
    this.#document = document;
    this.#path = path;
    this.#space = this.#rules.add('" "? | "\\n" [ \\t]{0,20}');
    const chars = [...charOptions(this.#rules, plainRanges), ...escapes];
    this.#char = this.#rules.add(chars.join(' | '));
    this.#rest = anyNumberOf(this.#rules, chars, '"\\""');
  }

  write(): string {
    return this.#rules.grammar(this.#visit(this.#document, { path: this.#path, depth: 0, open: [] }));
  }

  #visit(schema: JsonSchema, place: Place): string {
    if (place.depth > MAX_DEPTH) throw new DataError(`${place.path}: must be at most ${MAX_DEPTH} levels deep`);
    if (schema === true) return this.#anyValue();
    if (schema === false) throw new DataError(`${place.path}: must admit some value, got false`);
    const kind = checkKeywords(schema, place.path);
    const within = (key: string): Place => ({ ...place, path: `${place.path}.${key}`, depth: place.depth + 1 });
    if (kind === '$ref') return this.#reference(schema.$ref as string, place);
    if (kind === 'const') return anyOfTexts(this.#rules, [oneText(JSON.stringify(schema.const))]);
    if (kind === 'enum') return this.#enumeration(schema, place);
    if (kind === 'allOf') return this.#visit((schema.allOf as JsonSchema[])[0]!, within('allOf.0'));
    if (kind === 'anyOf' || kind === 'oneOf') {
      const options = schema[kind] as JsonSchema[];
      if (kind === 'oneOf') this.#checkDisjoint(options, `${place.path}.oneOf`);
      return this.#rules.choice(options.map((option, i) => this.#visit(option, within(`${kind}.${i}`))));
    }
    const types = typesOf(schema, place.path);
    if (types === null) return this.#anyValue();
    return this.#rules.choice(types.map((type) => this.#typed(type, schema, place)));
  }

  #typed(type: string, schema: SchemaObject, place: Place): string {
    switch (type) {
      case 'null':
        return '"null"';
      case 'boolean':
        return anyOfTexts(this.#rules, [oneText('true'), oneText('false')]);
      case 'string':
        return this.#string(schema, place);
      case 'array':
        return this.#array(schema, { ...place, open: [] });
      case 'object':
        return this.#object(schema, { ...place, open: [] });
      default:
        return this.#number(schema, type === 'integer', place);
    }
  }

  #number(schema: SchemaObject, isInteger: boolean, place: Place): string {
    const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema as Bounds;
    const bounds = Object.fromEntries(
      Object.entries({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }).filter(
        ([, bound]) => bound !== undefined,
      ),
    );
    if (Object.keys(bounds).length > 0) return numberRange(this.#rules, bounds, isInteger, place.path);
    return isInteger ? anyInteger : `(${anyNumber})`;
  }

  #string(schema: SchemaObject, { path }: Place): string {
    const { pattern, format, minLength = 0, maxLength = null } = schema;
    if (pattern !== undefined) {
      const options = { match: 'anywhere', writeChar: jsonChar, path: `${path}.pattern` } as const;
      return `"\\"" ${regexToEbnf(this.#rules, pattern as string, options)} "\\""`;
    }
    if (format !== undefined) {
      const options = { match: 'whole', writeChar: jsonChar, path: `${path}.format` } as const;
      return `"\\"" ${regexToEbnf(this.#rules, stringFormats[format as string]!, options)} "\\""`;
    }
    const least = minLength as number;
    if (maxLength !== null) return `"\\"" ${repeat(this.#char, least, maxLength as number)} "\\""`;
    return `"\\"" ${least > 0 ? repeat(this.#char, least, least) : ''} ${this.#rest}`;
  }

  #array(schema: SchemaObject, place: Place): string {
    const { minItems = 0, maxItems = null } = schema as { minItems?: number; maxItems?: number };
    const item = (value: JsonSchema, key: string): string =>
      this.#rules.add(this.#visit(value, { path: `${place.path}.${key}`, depth: place.depth + 1, open: [] }));
    const first = (schema.prefixItems as JsonSchema[] | undefined) ?? [];
    const prefix = first.slice(0, maxItems ?? first.length).map((value, i) => item(value, `prefixItems.${i}`));
    const rest = (schema.items as JsonSchema | undefined) ?? (first.length === 0 && schema.items === undefined);
    const next = `"," ${this.#space}`;
    const least = Math.max(0, minItems - prefix.length);
    const most =
      rest === false || prefix.length < first.length ? 0 : maxItems === null ? null : maxItems - prefix.length;
    if (most !== null && (least > most || minItems > prefix.length + most)) {
      throw new DataError(
        `${place.path}.minItems: must be possible, got ${minItems} of at most ${prefix.length + most}`,
      );
    }
    const open = `"[" ${this.#space}`;
    const close = `${this.#space} "]"`;
    if (most === 0) return prefix.length === 0 ? `${open} "]"` : `${open} ${prefix.join(` ${next} `)} ${close}`;
    const other = item(rest, 'items');
    if (prefix.length > 0)
      return `${open} ${prefix.join(` ${next} `)} ${repeat(`${next} ${other}`, least, most)} ${close}`;
    const more = repeat(`${next} ${other}`, Math.max(0, least - 1), most === null ? null : most - 1);
    const some = `${other} ${more} ${close}`;
    return `${open} ${least > 0 ? some : `("]" | ${some})`}`;
  }

  #object(schema: SchemaObject, place: Place): string {
    const properties = (schema.properties ?? {}) as Readonly<Record<string, JsonSchema>>;
    const names = Object.keys(properties);
    const required = new Set((schema.required ?? []) as string[]);
    const inside = (key: string): Place => ({ path: `${place.path}.${key}`, depth: place.depth + 1, open: [] });
    const additional = (schema.additionalProperties ?? names.length === 0) as JsonSchema;
    const missing = [...required].filter((name) => !Object.hasOwn(properties, name));
    if (missing.length > 0 && additional === false) {
      throw new DataError(`${place.path}.required: must name properties, got ${missing[0]}`);
    }
    const pairs = names.map((name) =>
      this.#pair(literal(JSON.stringify(name)), properties[name]!, inside(`properties.${name}`)),
    );
    // A required name without a schema of its own has that of additional properties.
    for (const name of missing) {
      names.push(name);
      pairs.push(this.#pair(literal(JSON.stringify(name)), additional, inside('additionalProperties')));
    }
    const other =
      additional === false
        ? null
        : this.#pair(
            this.#otherKey(schema, names, inside('propertyNames')),
            additional,
            inside('additionalProperties'),
          );
    const body = this.#members(
      names.map((name, i) => ({ pair: pairs[i]!, isRequired: required.has(name) })),
      other,
    );
    const open = `"{" ${this.#space}`;
    if (body === null) return `${open} "}"`;
    const full = `${body} ${this.#space} "}"`;
    return `${open} ${names.some((name) => required.has(name)) ? full : `("}" | ${full})`}`;
  }

  #pair(key: string, value: JsonSchema, place: Place): string {
    return this.#rules.add(`${key} ":" ${this.#space} ${this.#visit(value, place)}`);
  }

  /** One or more members in order, optional ones left out or not; null if there is none. */
  #members(
    members: readonly { readonly pair: string; readonly isRequired: boolean }[],
    other: string | null,
  ): string | null {
    const next = `"," ${this.#space}`;
    /** Members from a place on, at least one. */
    let some = other === null ? null : this.#rules.add(`${other} (${next} ${other})*`);
    let isOptional = true;
    for (const { pair, isRequired } of [...members].reverse()) {
      const more = some === null ? '' : isOptional ? `(${next} ${some})?` : `${next} ${some}`;
      const withThis = this.#rules.add(`${pair} ${more}`);
      some = isRequired || some === null ? withThis : this.#rules.add(`${withThis} | ${some}`);
      isOptional &&= !isRequired;
    }
    return some;
  }

  /** A key that is none of `names`, so that no value is overwritten by one of another schema. */
  #otherKey(schema: SchemaObject, names: readonly string[], place: Place): string {
    const { propertyNames } = schema;
    if (propertyNames !== undefined && propertyNames !== true) {
      const keys = { type: 'string', ...(propertyNames as SchemaObject) };
      if (Object.keys(keys).length > 1) {
        if (names.length > 0) throw new DataError(`${place.path}: must stand without properties and required`);
        return this.#visit(keys, place);
      }
    }
    return names.length === 0
      ? `"\\"" ${this.#rest}`
      : `"\\"" ${this.#rules.add(this.#not(names.map((name) => [...name])))} "\\""`;
  }

  /** Texts without escapes that are none of `words`. */
  #not(words: readonly (readonly string[])[]): string {
    const heads = [...new Set(words.flatMap(([head]) => (head === undefined ? [] : [head])))];
    const points = heads.map((head) => head.codePointAt(0)!);
    const others = charClass(
      this.#rules,
      complement([...controlChars, ...points.map((point) => [point, point] as const)]),
    );
    const options = [`${others} ${anyNumberOf(this.#rules, charOptions(this.#rules, plainRanges))}`];
    if (!words.some((word) => word.length === 0)) options.push('""');
    for (const head of heads) {
      if (head === '"' || head === '\\' || head < ' ') continue; // Never written without an escape.
      const tails = words.filter(([first]) => first === head).map(([, ...tail]) => tail);
      options.push(`${literal(head)} ${this.#rules.add(this.#not(tails))}`);
    }
    return options.join(' | ');
  }

  #enumeration(schema: SchemaObject, place: Place): string {
    const types = schema.type === undefined ? null : typesOf({ type: schema.type }, place.path);
    const fits = (value: unknown): boolean =>
      types === null || types.includes(typeName(value)) || (types.includes('number') && typeName(value) === 'integer');
    const values = (schema.enum as unknown[]).filter(fits);
    if (values.length === 0) throw new DataError(`${place.path}.enum: must have a value of its type, got none`);
    return anyOfTexts(
      this.#rules,
      values.map((value) => oneText(JSON.stringify(value))),
    );
  }

  #reference(pointer: string, place: Place): string {
    if (place.open.includes(pointer))
      throw new DataError(`${place.path}.$ref: must not lead back to itself, got ${pointer}`);
    const target = resolvePointer(this.#document, pointer, `${place.path}.$ref`);
    const known = this.#references.get(pointer);
    if (known !== undefined && !place.open.includes(pointer)) return known;
    const name = this.#rules.name();
    this.#references.set(pointer, name);
    const body = this.#visit(target, {
      path: `${this.#path}.${pointer}`,
      depth: place.depth + 1,
      open: [...place.open, pointer],
    });
    return this.#rules.define(name, body);
  }

  #checkDisjoint(options: readonly JsonSchema[], path: string): void {
    const resolved = options.map((option) =>
      typeof option === 'object' && typeof option.$ref === 'string'
        ? resolvePointer(this.#document, option.$ref, path)
        : option,
    );
    if (!isDisjoint(resolved)) {
      throw new DataError(
        `${path}: must be alternatives that differ by type or by the const of a required property; use anyOf`,
      );
    }
  }

  #anyValue(): string {
    if (this.#any !== null) return this.#any;
    const value = this.#rules.name();
    this.#any = value;
    const text = this.#rules.add(`"\\"" ${this.#rest}`);
    const space = this.#space;
    const array = this.#rules.add(`"[" ${space} ("]" | ${value} ("," ${space} ${value})* ${space} "]")`);
    const member = this.#rules.add(`${text} ":" ${space} ${value}`);
    const object = this.#rules.add(`"{" ${space} ("}" | ${member} ("," ${space} ${member})* ${space} "}")`);
    return this.#rules.define(value, `${object} | ${array} | ${text} | ${anyNumber} | "true" | "false" | "null"`);
  }
}

const controlChars = [
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
] as const;
/** Characters of a JSON string that stand for themselves. */
const plainRanges = complement(controlChars);
/** Halves of surrogate pairs are left out, so that every escape is a character. */
const escapes = [
  '"\\\\" ["\\\\/bfnrt]',
  '"\\\\u" [0-9a-cA-CefEF] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F]',
  '"\\\\u" [dD] [0-7] [0-9a-fA-F] [0-9a-fA-F]',
];

function typeName(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return Number.isInteger(value) ? 'integer' : typeof value;
}
