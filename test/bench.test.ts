/** The benchmarks: what they count is what is executed, and the report has the shape that tools read. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { countMatmulFlops, createFlopCounter, distinctMatmuls } from '../bench/flops.ts';
import { median } from '../bench/measure.ts';
import { createModel, lora } from '../bench/models.ts';
import { input, makeGraph, matmul } from '../src/graph/builder.ts';
import { writeOnnxModel } from '../src/graph/onnx.ts';
import { hostTensor } from '../src/graph/runtime.ts';
import { createReferenceRuntime } from '../src/graph/runtime-reference.ts';
import { loraShapes } from '../src/nn/lora.ts';
import { trainingGraph } from '../src/train/trainer.ts';
import { root } from './source-imports.ts';

test('a product costs 2·m·n·k per batch entry, whichever way its operands lie', () => {
  const a = input('a', ['B', 'T', 3]);
  const b = input('b', [5, 3]);
  expect(countMatmulFlops(makeGraph({ y: matmul(a, b, { transB: true }) }), { B: 2, T: 7 })).toBe(2 * 2 * 7 * 5 * 3);
  const c = input('c', ['T', 4]);
  const d = input('d', ['T', 6]);
  expect(countMatmulFlops(makeGraph({ y: matmul(c, d, { transA: true }) }), { T: 7 })).toBe(2 * 4 * 6 * 7);
});

test('equal products are executed once and count once', () => {
  const [a, b] = [input('a', [2, 3]), input('b', [3, 4])];
  const graph = makeGraph({ x: matmul(a, b), y: matmul(a, b), z: matmul(a, b, { alpha: 2 }) });
  expect(countMatmulFlops(graph, {})).toBe(2 * (2 * 2 * 3 * 4));
});

test('as many products are counted in a training graph as its ONNX model has', () => {
  const { config } = createModel(0);
  const graph = trainingGraph(config, lora, 'cispo', [...loraShapes(config, lora).keys()]);
  const text = Buffer.from(writeOnnxModel(graph).bytes).toString('latin1');
  // A node's name begins with its type, so each node holds the word twice.
  expect(distinctMatmuls(graph).length).toBe((text.match(/FusedMatMul|Gemm/g)?.length ?? 0) / 2);
});

test('the counter counts inside `count` only', async () => {
  const counter = createFlopCounter(createReferenceRuntime());
  const graph = makeGraph({ y: matmul(input('a', ['T', 2]), input('b', [2, 2])) });
  const executable = await counter.runtime.compile(graph);
  const run = (): Promise<unknown> =>
    executable.run({ a: hostTensor(new Float64Array(6), [3, 2]), b: hostTensor(new Float64Array(4), [2, 2]) });
  await run();
  expect(await counter.count(run)).toBe(2 * 3 * 2 * 2);
});

test('median', () => {
  expect(median([3, 1, 2])).toBe(2);
  expect(median([4, 1, 2, 3])).toBe(2.5);
});

test('npm run bench -- --quick --json ends with the report', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, [
    join(root, 'dist/bench/main.js'),
    '--quick',
    '--json',
  ]);
  const report = JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '');
  expect(Object.keys(report)).toEqual(['machine', 'ceilingGflops', 'results']);
  expect(report.machine).toMatchObject({ node: process.versions.node, onnxruntime: expect.any(String) });
  expect(report.ceilingGflops).toBeGreaterThan(0);
  expect(report.results.map((result: { unit: string }) => result.unit)).toEqual(
    expect.arrayContaining(['tokens/s', 'requests/s']),
  );
  for (const result of report.results) {
    expect(result.value, result.name).toBeGreaterThan(0);
    if (result.unit === 'tokens/s') {
      expect(result.ceilingShare, result.name).toBeGreaterThan(0);
      expect(result.ceilingShare, result.name).toBeLessThan(1.5);
    } else expect(result.peer, result.name).toEqual(expect.any(String));
  }
});
