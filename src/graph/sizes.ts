/**
 * Sizes of tensor axes, known or symbolic. Layer 1.
 * A symbolic size is a monomial in canonical form: a coefficient above 1, then the symbols in order, joined by `*`.
 * Sums ('T+1') are left out: an axis that is concatenated or sliced has a fixed size.
 */

import { ShapeError } from '../core/errors.ts';

/** A fixed size, or a canonical symbolic monomial such as 'T', '4*T' or 'B*T'. */
export type Dim = number | string;
export type Shape = readonly Dim[];
/** Values of symbols; a monomial that was fed as a whole may stand as its own key. */
export type SizeBindings = Readonly<Record<string, number>>;

interface Monomial {
  readonly coefficient: number;
  readonly symbols: readonly string[];
}

function parseDim(dim: Dim): Monomial {
  if (typeof dim === 'number') return { coefficient: dim, symbols: [] };
  let coefficient = 1;
  const symbols: string[] = [];
  for (const factor of dim.split('*')) {
    if (/^\d+$/.test(factor)) coefficient *= Number(factor);
    else if (/^[A-Za-z_]\w*$/.test(factor)) symbols.push(factor);
    else throw new ShapeError(`size: must be a number or a product such as '4*T', got '${dim}'`);
  }
  return { coefficient, symbols: symbols.sort() };
}

function formatDim({ coefficient, symbols }: Monomial): Dim {
  if (symbols.length === 0 || coefficient === 0) return coefficient;
  return [...(coefficient === 1 ? [] : [String(coefficient)]), ...symbols].join('*');
}

/** The same size in canonical form: 'T*B' becomes 'B*T'. */
export function canonicalDim(dim: Dim): Dim {
  if (typeof dim === 'number' && !(Number.isSafeInteger(dim) && dim >= 0)) {
    throw new ShapeError(`size: must be a whole number of at least 0, got ${dim}`);
  }
  return formatDim(parseDim(dim));
}

/** The product in canonical form; 1 of no sizes. */
export function multiplyDims(dims: Shape): Dim {
  const parsed = dims.map(parseDim);
  return formatDim({
    coefficient: parsed.reduce((product, dim) => product * dim.coefficient, 1),
    symbols: parsed.flatMap((dim) => dim.symbols).sort(),
  });
}

/** `dividend / divisor`; throws ShapeError if it does not divide for every value of the symbols. */
export function divideDims(dividend: Dim, divisor: Dim): Dim {
  const { coefficient, symbols } = parseDim(dividend);
  const by = parseDim(divisor);
  const left = [...symbols];
  for (const symbol of by.symbols) {
    const at = left.indexOf(symbol);
    if (at < 0) throw new ShapeError(`size: ${dividend} must be divisible by ${divisor}`);
    left.splice(at, 1);
  }
  const quotient = coefficient / by.coefficient;
  if (!Number.isInteger(quotient)) throw new ShapeError(`size: ${dividend} must be divisible by ${divisor}`);
  return formatDim({ coefficient: quotient, symbols: left });
}

/** Compares canonical sizes: `'T*B'` and `'B*T'` must have been made canonical before. */
export function sameShape(a: Shape, b: Shape): boolean {
  return a.length === b.length && a.every((dim, axis) => dim === b[axis]);
}

/** As in error messages: `[2, T]`. */
export function formatShape(shape: Shape): string {
  return `[${shape.join(', ')}]`;
}

/** The numbers behind a shape, e.g. `bindShape(['B', '4*T'], { B: 2, T: 8 })` is `[2, 32]`. */
export function bindShape(shape: Shape, bindings: SizeBindings): number[] {
  return shape.map((dim) => {
    if (typeof dim === 'number') return dim;
    const whole = bindings[dim];
    if (whole !== undefined) return whole;
    const { coefficient, symbols } = parseDim(dim);
    return symbols.reduce((product, symbol) => {
      const value = bindings[symbol];
      if (value === undefined) throw new ShapeError(`size: ${symbol} in ${formatShape(shape)} must have a value`);
      return product * value;
    }, coefficient);
  });
}

/**
 * Adds what `sizes` says about the symbols of `shape` to `bindings`. A monomial with several unknown symbols is bound
 * as a whole. Returns the axis that contradicts the bindings, or −1.
 */
export function matchShape(shape: Shape, sizes: readonly number[], bindings: Record<string, number>): number {
  for (const [axis, dim] of shape.entries()) {
    const size = sizes[axis]!;
    if (typeof dim === 'number') {
      if (dim !== size) return axis;
      continue;
    }
    const { coefficient, symbols } = parseDim(dim);
    const unknown = symbols.filter((symbol) => bindings[symbol] === undefined);
    if (unknown.length === 0) {
      if (bindShape([dim], bindings)[0] !== size) return axis;
    } else if (unknown.length === 1) {
      const known = symbols.reduce((product, symbol) => product * (bindings[symbol] ?? 1), coefficient);
      if (size % known !== 0) return axis;
      bindings[unknown[0]!] = size / known;
    } else if (bindings[dim] === undefined) bindings[dim] = size;
    else if (bindings[dim] !== size) return axis;
  }
  return -1;
}

/** numpy broadcasting of shapes; throws ShapeError that names `op`. */
export function broadcastShapes(op: string, shapes: readonly Shape[]): Shape {
  const rank = Math.max(...shapes.map((shape) => shape.length));
  return Array.from({ length: rank }, (_, axis) => {
    let result: Dim = 1;
    for (const shape of shapes) {
      const dim = shape[axis - rank + shape.length] ?? 1;
      if (dim === 1 || dim === result) continue;
      if (result !== 1) {
        throw new ShapeError(
          `${op}: sizes must be equal or 1 on every axis, got ${shapes.map(formatShape).join(' and ')}`,
        );
      }
      result = dim;
    }
    return result;
  });
}
