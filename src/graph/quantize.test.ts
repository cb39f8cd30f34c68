import { describe, expect, test } from 'vitest';
import { createRng } from '../core/rng.ts';
import { gatherRows, input, makeGraph, matmul } from './builder.ts';
import { writeOnnxModel } from './onnx.ts';
import { quantizeRows } from './quantize.ts';
import { hostIds, hostTensor } from './runtime.ts';
import { createOrtRuntime } from './runtime-ort.ts';

const ort = await createOrtRuntime({ threads: 1 });

function randomFloats(count: number, seed: string): Float32Array {
  const rng = createRng('quantize', seed);
  return Float32Array.from({ length: count }, () => rng.normal());
}

test('each value is within half a scale of its row, whatever the size, and columns come first', () => {
  const [rows, columns] = [70, 130];
  const weights = randomFloats(rows * columns, 'weights').map((value, i) => value * (1 + Math.floor(i / columns)));
  weights.fill(0, 3 * columns, 4 * columns);
  const { data, scales } = quantizeRows(weights, [rows, columns]);
  expect(scales[3]).toBe(1);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const error = data[column * rows + row]! * scales[row]! - weights[row * columns + column]!;
      expect(Math.abs(error)).toBeLessThanOrEqual(scales[row]! * 0.5001);
    }
  }
  expect(quantizeRows(weights, [rows, columns]).data).toBe(data);
});

describe('products with int8 weights', () => {
  const [inner, outer] = [256, 96];
  const weights = randomFloats(inner * outer, 'product');
  const w = input('w', [outer, inner]);
  const product = makeGraph({ y: matmul(input('x', ['N', inner]), w, { transB: true }) });
  const constants = new Map([['w', weights]]);

  test('are off by about a hundredth of their deviation, in rows of any size beside each other', async () => {
    const executable = await ort.compile(product, { constants, precision: 'int8' });
    const exact = await ort.compile(product, { constants });
    const sizes = [1, 1e-6, 1e6, 0, 30];
    const x = hostTensor(
      randomFloats(sizes.length * inner, 'x').map((value, i) => value * sizes[Math.floor(i / inner)]!),
      [sizes.length, inner],
    );
    const [got, wanted] = await Promise.all([executable.run({ x }), exact.run({ x })]);
    for (const [row, size] of sizes.entries()) {
      let [squares, errors] = [0, 0];
      for (let i = row * outer; i < (row + 1) * outer; i++) {
        squares += Number(wanted.y!.data[i]) ** 2;
        errors += (Number(got.y!.data[i]) - Number(wanted.y!.data[i])) ** 2;
      }
      if (size === 0) expect(errors).toBe(0);
      // Rounding of both factors to 1/127 of about 3.5 deviations: 0.008 each.
      else expect(Math.sqrt(errors / squares)).toBeLessThan(0.02);
    }
  });

  test('keep the float32 weights only where something else reads them', () => {
    const table = makeGraph({ ...product.outputs, rows: gatherRows(w, input('ids', ['N'], 'int64')) });
    const bytes = (graph: typeof product): number => writeOnnxModel(graph, constants, 'int8').bytes.length;
    expect(bytes(table) - bytes(product)).toBeGreaterThan(4 * weights.length);
    expect(bytes(product)).toBeLessThan(1.5 * weights.length);
  });

  test('a table that is also multiplied gives its rows exactly', async () => {
    const graph = makeGraph({ ...product.outputs, rows: gatherRows(w, input('ids', ['N'], 'int64')) });
    const executable = await ort.compile(graph, { constants, precision: 'int8' });
    const x = hostTensor(randomFloats(2 * inner, 'x'), [2, inner]);
    const { rows } = await executable.run({ x, ids: hostIds([5, 90]) });
    expect(rows!.data.slice(0, inner)).toEqual(weights.slice(5 * inner, 6 * inner));
    expect(rows!.data.slice(inner)).toEqual(weights.slice(90 * inner, 91 * inner));
  });
});
