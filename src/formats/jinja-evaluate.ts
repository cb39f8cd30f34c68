/**
 * Walks the syntax tree of a Jinja template. Layer 1. The tree is that of `@huggingface/jinja` (src/ast.ts); the meaning is jinja2's:
 * every iteration of a loop has a scope of its own, a macro sees the scope it is written in, `if` has none.
 */
import { codePoints, spend, spendOutput } from './jinja-budget.ts';
import { applyFilter, applyTest, contains } from './jinja-filters.ts';
import { globals } from './jinja-globals.ts';
import { methodOf } from './jinja-methods.ts';
import { arithmetic, joinTexts } from './jinja-operators.ts';
import {
  Attributes,
  type Callable,
  compare,
  Float,
  isEqual,
  isTruthy,
  iterate,
  Tuple,
  templateError,
  toNumber,
  toText,
  typeName,
  type Value,
} from './jinja-values.ts';

/** A node of the tree; its other fields depend on the type. */
export interface Node {
  readonly type: string;
  readonly [field: string]: unknown;
}

type Keywords = ReadonlyMap<string, Value>;

class Scope {
  readonly values: Map<string, Value>;
  readonly #outer: Scope | null;

  constructor(outer: Scope | null, values: Iterable<readonly [string, Value]> = []) {
    this.#outer = outer;
    this.values = new Map(values);
  }

  get(name: string): Value {
    return this.values.has(name) ? this.values.get(name) : this.#outer?.get(name);
  }
}

const skipRest = Symbol('continue');
const endLoop = Symbol('break');

export class Evaluator {
  readonly #now: Date;

  constructor(now: Date) {
    this.#now = now;
  }

  render(program: Node, variables: Iterable<readonly [string, Value]>): string {
    const scope = new Scope(new Scope(null, globals(this.#now)), variables);
    return this.#block(program.body as Node[], scope);
  }

  #block(nodes: readonly Node[], scope: Scope): string {
    let text = '';
    for (const node of nodes) text += this.#statement(node, scope);
    return text;
  }

  #statement(node: Node, scope: Scope): string {
    spend();
    switch (node.type) {
      case 'If': {
        const isTaken = isTruthy(this.#value(node.test as Node, scope));
        return this.#block((isTaken ? node.body : node.alternate) as Node[], scope);
      }
      case 'For':
        return this.#for(node, scope);
      case 'Set':
        this.#set(node, scope);
        return '';
      case 'Macro':
        scope.values.set((node.name as Node).value as string, this.#macro(node, node.args as Node[], scope));
        return '';
      case 'CallStatement': {
        const call = node.call as Node;
        const caller = this.#macro(node, (node.callerArgs ?? []) as Node[], scope);
        const [args, keywords] = this.#arguments(call.args as Node[], scope);
        return toText(
          this.#call(this.#value(call.callee as Node, scope), args, new Map([...keywords, ['caller', caller]])),
        );
      }
      case 'FilterStatement': {
        const text = this.#block(node.body as Node[], new Scope(scope));
        return toText(this.#filter(text, node.filter as Node, scope));
      }
      case 'Comment':
        return '';
      case 'Break':
        throw endLoop;
      case 'Continue':
        throw skipRest;
      default:
        return spendOutput(toText(this.#value(node, scope)));
    }
  }

  #for(node: Node, scope: Scope): string {
    const source = node.iterable as Node;
    const isFiltered = source.type === 'SelectExpression';
    const all = iterate(this.#value((isFiltered ? source.lhs : source) as Node, scope));
    const bind = (item: Value): Scope => {
      const inner = new Scope(scope);
      assign(node.loopvar as Node, item, inner);
      return inner;
    };
    const items = isFiltered ? all.filter((item) => isTruthy(this.#value(source.test as Node, bind(item)))) : all;
    if (items.length === 0) return this.#block(node.defaultBlock as Node[], new Scope(scope));
    // What an iteration wrote before `break` or `continue` stays.
    const written: string[] = [];
    const changed = createChanged();
    for (let index = 0; index < items.length; index++) {
      const inner = bind(items[index]);
      inner.values.set('loop', loopOf(items, index, changed));
      try {
        for (const child of node.body as Node[]) written.push(this.#statementOf(child, inner, written));
      } catch (signal) {
        if (signal === endLoop) break;
        if (signal !== skipRest) throw signal;
      }
    }
    return written.join('');
  }

  /** As `#statement`, but an `if` that ends the iteration keeps what it wrote before. */
  #statementOf(node: Node, scope: Scope, written: string[]): string {
    if (node.type !== 'If') return this.#statement(node, scope);
    const isTaken = isTruthy(this.#value(node.test as Node, scope));
    for (const child of (isTaken ? node.body : node.alternate) as Node[]) {
      written.push(this.#statementOf(child, scope, written));
    }
    return '';
  }

  #set(node: Node, scope: Scope): void {
    const value = node.value as Node | null;
    const given = value === null ? this.#block(node.body as Node[], new Scope(scope)) : this.#value(value, scope);
    const target = node.assignee as Node;
    if (target.type !== 'MemberExpression') {
      assign(target, given, scope);
      return;
    }
    const owner = this.#value(target.object as Node, scope);
    if (!(owner instanceof Attributes)) throw templateError('cannot assign attribute on non-namespace object');
    owner.values.set((target.property as Node).value as string, given);
  }

  #macro(node: Node, parameters: readonly Node[], scope: Scope): Callable {
    const names = parameters.map(
      (parameter) => (parameter.type === 'Identifier' ? parameter : (parameter.key as Node)).value as string,
    );
    return (args, keywords) => {
      const inner = new Scope(scope);
      const named = new Map(keywords);
      for (const [place, name] of names.entries()) {
        const isGiven = place < args.length || named.has(name);
        inner.values.set(name, place < args.length ? args[place] : named.get(name));
        named.delete(name);
        const parameter = parameters[place] as Node;
        if (!isGiven && parameter.type !== 'Identifier') {
          inner.values.set(name, this.#value(parameter.value as Node, inner));
        }
      }
      inner.values.set('caller', named.get('caller'));
      named.delete('caller');
      inner.values.set('varargs', Tuple.from(args.slice(names.length)));
      inner.values.set('kwargs', new Map<Value, Value>(named));
      return this.#block(node.body as Node[], inner);
    };
  }

  #arguments(nodes: readonly Node[], scope: Scope): [Value[], Map<string, Value>] {
    const args: Value[] = [];
    const keywords = new Map<string, Value>();
    for (const node of nodes) {
      if (node.type === 'KeywordArgumentExpression') {
        keywords.set((node.key as Node).value as string, this.#value(node.value as Node, scope));
      } else if (node.type === 'SpreadExpression') {
        args.push(...iterate(this.#value(node.argument as Node, scope)));
      } else if (node.type === 'KeywordSpreadExpression') {
        const dict = this.#value(node.argument as Node, scope);
        for (const key of iterate(dict)) keywords.set(toText(key), (dict as Map<Value, Value>).get(key));
      } else args.push(this.#value(node, scope));
    }
    return [args, keywords];
  }

  #call(callee: Value, args: readonly Value[], keywords: Keywords): Value {
    if (typeof callee === 'function') return callee(args, keywords);
    throw templateError(`'${typeName(callee)}' object is not callable`);
  }

  #filter(value: Value, filter: Node, scope: Scope): Value {
    if (filter.type !== 'CallExpression') return applyFilter(filter.value as string, value, [], new Map());
    const [args, keywords] = this.#arguments(filter.args as Node[], scope);
    return applyFilter((filter.callee as Node).value as string, value, args, keywords);
  }

  #value(node: Node, scope: Scope): Value {
    spend();
    switch (node.type) {
      case 'StringLiteral':
      case 'IntegerLiteral':
        return node.value as Value;
      case 'FloatLiteral':
        return new Float(node.value as number);
      case 'ArrayLiteral':
        return (node.value as Node[]).map((item) => this.#value(item, scope));
      case 'TupleLiteral':
        return Tuple.from((node.value as Node[]).map((item) => this.#value(item, scope)));
      case 'ObjectLiteral': {
        const entries = [...(node.value as Map<Node, Node>)];
        return new Map(entries.map(([key, value]) => [this.#value(key, scope), this.#value(value, scope)]));
      }
      case 'Identifier':
        return scope.get(node.value as string);
      case 'MemberExpression':
        return this.#member(node, scope);
      case 'CallExpression': {
        const [args, keywords] = this.#arguments(node.args as Node[], scope);
        return this.#call(this.#value(node.callee as Node, scope), args, keywords);
      }
      case 'FilterExpression':
        return this.#filterExpression(node, scope);
      case 'TestExpression':
        return (
          applyTest((node.test as Node).value as string, this.#value(node.operand as Node, scope), []) !== node.negate
        );
      case 'Ternary':
        return this.#value(
          (isTruthy(this.#value(node.condition as Node, scope)) ? node.trueExpr : node.falseExpr) as Node,
          scope,
        );
      case 'SelectExpression':
        return isTruthy(this.#value(node.test as Node, scope)) ? this.#value(node.lhs as Node, scope) : undefined;
      case 'UnaryExpression':
        return unary((node.operator as Node).value as string, this.#value(node.argument as Node, scope));
      case 'BinaryExpression':
        return this.#binary(node, scope);
      default:
        throw templateError(`${node.type} is not implemented`);
    }
  }

  #filterExpression(node: Node, scope: Scope): Value {
    return this.#filter(this.#value(node.operand as Node, scope), node.filter as Node, scope);
  }

  #binary(node: Node, scope: Scope): Value {
    const operator = (node.operator as Node).value as string;
    const left = this.#value(node.left as Node, scope);
    if (operator === 'and') return isTruthy(left) ? this.#value(node.right as Node, scope) : left;
    if (operator === 'or') return isTruthy(left) ? left : this.#value(node.right as Node, scope);
    const right = this.#value(node.right as Node, scope);
    switch (operator) {
      case '==':
        return isEqual(left, right);
      case '!=':
        return !isEqual(left, right);
      case 'in':
        return contains(right, left);
      case 'not in':
        return !contains(right, left);
      case '<':
        return compare(left, right) < 0;
      case '>':
        return compare(left, right) > 0;
      case '<=':
        return compare(left, right) <= 0;
      case '>=':
        return compare(left, right) >= 0;
      case '~':
        return joinTexts(toText(left), toText(right));
      default:
        return arithmetic(operator, left, right);
    }
  }

  #member(node: Node, scope: Scope): Value {
    const owner = this.#value(node.object as Node, scope);
    const property = node.property as Node;
    if (property.type === 'SliceExpression') return this.#slice(owner, property, scope);
    if (node.computed !== true) {
      const name = property.value as string | number;
      return typeof name === 'number' ? itemOf(owner, name) : attributeOf(owner, name);
    }
    return itemOf(owner, this.#value(property, scope));
  }

  #slice(owner: Value, node: Node, scope: Scope): Value {
    const numberOf = (field: unknown): number | null =>
      field === undefined ? null : toNumber(this.#value(field as Node, scope));
    const [start, stop, step] = [numberOf(node.start), numberOf(node.stop), numberOf(node.step) ?? 1];
    if (typeof owner === 'string') return slice(codePoints(owner), start, stop, step).join('');
    if (!Array.isArray(owner)) throw templateError(`'${typeName(owner)}' object is not subscriptable`);
    spend(owner.length);
    const sliced = slice(owner, start, stop, step);
    return owner instanceof Tuple ? Tuple.from(sliced) : sliced;
  }
}

function assign(target: Node, value: Value, scope: Scope): void {
  if (target.type === 'Identifier') {
    scope.values.set(target.value as string, value);
    return;
  }
  if (target.type !== 'TupleLiteral') throw templateError(`cannot assign to ${target.type}`);
  const targets = target.value as Node[];
  const items = iterate(value);
  if (items.length !== targets.length) {
    throw templateError(`must unpack ${targets.length} values, got ${items.length}`);
  }
  for (const [index, inner] of targets.entries()) assign(inner, items[index], scope);
}

/** `owner.name`: a method of the type hides an equal key, as in jinja2. */
function attributeOf(owner: Value, name: string): Value {
  if (owner === undefined) throw templateError(`an undefined value has no attribute '${name}'`);
  if (owner instanceof Attributes) return owner.values.get(name);
  return methodOf(owner, name) ?? (owner instanceof Map ? owner.get(name) : undefined);
}

/** `owner[key]`: an item, else the attribute of that name. */
function itemOf(owner: Value, key: Value): Value {
  if (owner === undefined) throw templateError(`an undefined value has no item ${toText(key)}`);
  if (owner instanceof Map && owner.has(key)) return owner.get(key);
  if (typeof key === 'number') {
    if (Array.isArray(owner)) return owner.at(key);
    return typeof owner === 'string' ? codePoints(owner).at(key) : undefined;
  }
  return typeof key === 'string' ? attributeOf(owner, key) : undefined;
}

function slice<T>(items: readonly T[], start: number | null, stop: number | null, step: number): T[] {
  if (step === 0) throw templateError('slice step cannot be zero');
  const count = items.length;
  const [low, high] = step > 0 ? [0, count] : [-1, count - 1];
  const clamp = (place: number): number => Math.min(Math.max(place < 0 ? place + count : place, low), high);
  const from = start === null ? (step > 0 ? low : high) : clamp(start);
  const to = stop === null ? (step > 0 ? high : low) : clamp(stop);
  const sliced: T[] = [];
  for (let place = from; step > 0 ? place < to : place > to; place += step) sliced.push(items[place] as T);
  return sliced;
}

function unary(operator: string, value: Value): Value {
  if (operator === 'not') return !isTruthy(value);
  const number = toNumber(value);
  if (number === null) throw templateError(`bad operand type for unary ${operator}: '${typeName(value)}'`);
  const signed = operator === '-' ? -number : number;
  return value instanceof Float ? new Float(signed) : signed + 0;
}

function createChanged(): Callable {
  let last: readonly Value[] | null = null;
  return (args) => {
    const isChanged = last === null || !isEqual([...last], [...args]);
    last = args;
    return isChanged;
  };
}

function loopOf(items: readonly Value[], index: number, changed: Callable): Attributes {
  return new Attributes([
    ['index', index + 1],
    ['index0', index],
    ['revindex', items.length - index],
    ['revindex0', items.length - index - 1],
    ['first', index === 0],
    ['last', index === items.length - 1],
    ['length', items.length],
    ['depth', 1],
    ['depth0', 0],
    ['previtem', items[index - 1]],
    ['nextitem', items[index + 1]],
    ['cycle', (args) => args[index % args.length]],
    ['changed', changed],
  ]);
}
