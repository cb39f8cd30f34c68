/**
 * Arithmetic of Python in Jinja templates. Layer 1.
 * Left out, and refused by name: formatting with `%`, whole numbers beyond 2^53.
 */
import { checkLength, spend } from './jinja-budget.ts';
import { Float, templateError, toNumber, typeName, type Value } from './jinja-values.ts';

/** `+ - * / // % **`. Throws DataError where Python raises. */
export function arithmetic(operator: string, left: Value, right: Value): Value {
  if (operator === '+' && typeof left === 'string' && typeof right === 'string') return joinTexts(left, right);
  if (operator === '+' && Array.isArray(left) && Array.isArray(right)) {
    spend(left.length + right.length);
    return left.concat(right);
  }
  if (operator === '*') {
    const repeated = repeat(left, right) ?? repeat(right, left);
    if (repeated !== null) return repeated;
  }
  const numbers = [toNumber(left), toNumber(right)] as const;
  if (numbers[0] === null || numbers[1] === null || typeof left === 'bigint' || typeof right === 'bigint') {
    throw templateError(`unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
  }
  const result = calculate(operator, numbers[0], numbers[1]);
  const isFloat =
    left instanceof Float || right instanceof Float || operator === '/' || (operator === '**' && numbers[1] < 0);
  if (!isFloat && !Number.isSafeInteger(result)) throw templateError(`${operator} must stay below 2^53, got ${result}`);
  return isFloat ? new Float(result) : result + 0;
}

/** Both, one after the other. */
export function joinTexts(left: string, right: string): string {
  checkLength(left.length + right.length);
  return left + right;
}

function calculate(operator: string, left: number, right: number): number {
  if (right === 0 && ['/', '//', '%'].includes(operator)) throw templateError('division by zero');
  switch (operator) {
    case '+':
      return left + right;
    case '-':
      return left - right;
    case '*':
      return left * right;
    case '/':
      return left / right;
    case '//':
      // A zero has the sign of the quotient.
      return Math.round((left - modulo(left, right)) / right) || 0 * Math.sign(left / right);
    case '%':
      return modulo(left, right);
    case '**':
      return left ** right;
    default:
      throw templateError(`operator ${operator} is not implemented`);
  }
}

/** With the sign of the divisor, as in Python. */
function modulo(left: number, right: number): number {
  const rest = left % right;
  if (rest === 0) return right < 0 ? -0 : 0;
  return rest < 0 !== right < 0 ? rest + right : rest;
}

function repeat(value: Value, count: Value): Value | null {
  if (typeof count !== 'number' && typeof count !== 'boolean') return null;
  const times = Math.max(Number(count), 0);
  if (typeof value === 'string') {
    checkLength(value.length * times);
    return value.repeat(times);
  }
  if (!Array.isArray(value)) return null;
  spend(value.length * times);
  return value.length === 0 ? [] : Array.from({ length: times }, () => value).flat(1);
}
