/** Symbolic sizes, error messages, and what executors check and promise. */

import { expect, test, vi } from 'vitest';
import { createRng } from '../core/rng.ts';
import { gradients, pullback } from './backward.ts';
import * as g from './builder.ts';
import { type Executable, type HostTensor, hostIds, hostTensor, type Runtime } from './runtime.ts';
import { createOrtRuntime } from './runtime-ort.ts';
import { createReferenceRuntime } from './runtime-reference.ts';
import { bindShape, canonicalDim, divideDims, multiplyDims } from './sizes.ts';

const runtimes: readonly (readonly [string, Runtime])[] = [
  ['reference', createReferenceRuntime()],
  ['ONNX Runtime', await createOrtRuntime({ threads: 1 })],
];

function randomFloats(shape: readonly number[], ...seed: readonly string[]): HostTensor {
  const rng = createRng(...seed);
  const count = shape.reduce((product, size) => product * size, 1);
  return hostTensor(Float32Array.from({ length: count }, rng.normal), shape);
}

const toNumbers = ({ data }: HostTensor): number[] => Array.from(data as ArrayLike<number | bigint>, Number);

function largestError(actual: HostTensor, expected: HostTensor): number {
  const values = toNumbers(actual);
  return Math.max(...toNumbers(expected).map((value, i) => Math.abs(value - values[i]!)));
}

test('sizes are canonical monomials', () => {
  expect(canonicalDim('T*2*B*3')).toBe('6*B*T');
  expect(multiplyDims(['B', 4, 'T', 'B'])).toBe('4*B*B*T');
  expect(multiplyDims([])).toBe(1);
  expect(divideDims('4*B*T', 'T')).toBe('4*B');
  expect(divideDims('4*T', '2*T')).toBe(2);
  expect(() => divideDims('3*T', 2)).toThrow('size: 3*T must be divisible by 2');
  expect(bindShape(['B', '4*T', 3], { B: 2, T: 8 })).toEqual([2, 32, 3]);
  expect(() => bindShape(['T'], {})).toThrow('size: T in [T] must have a value');
  expect(() => canonicalDim('T+1')).toThrow("size: must be a number or a product such as '4*T', got 'T+1'");
});

test('errors name the op, the rule and the shapes', () => {
  const a = g.input('a', [4, 8]);
  const b = g.input('b', [6, 2]);
  const ids = g.input('ids', [3], 'int64');
  expect(() => g.matmul(a, b)).toThrow('matmul: inner sizes must match, got [4, 8] × [6, 2]');
  expect(() => g.matmul(a, b, { transB: true })).toThrow('matmul: inner sizes must match, got [4, 8] × [6, 2]ᵀ');
  expect(() => g.add(a, b)).toThrow('add: sizes must be equal or 1 on every axis, got [4, 8] and [6, 2]');
  expect(() => g.add(a, ids)).toThrow('add: dtypes must be equal, got float32 and int64');
  expect(() => g.exp(ids)).toThrow('exp: dtype must be float32, got int64');
  expect(() => g.reduceSum(a, [2])).toThrow('reduceSum: axis must be at least -2 and below 2, got 2');
  expect(() => g.reshape(a, [31])).toThrow('reshape: number of elements must stay, got [4, 8] → [31]');
  expect(() => g.reshape(g.input('x', ['B*T', 4]), ['B', 'T', 4])).toThrow('use reshapeLike');
  expect(() => g.slice(g.input('x', ['T']), 0, 0, 1)).toThrow('slice: axis 0 must have a fixed size, got [T]');
  expect(() => g.gatherRows(a, b)).toThrow('gatherRows: dtype must be int64, got float32');
  expect(() => g.input('%1', [])).toThrow('input: name must start with a letter');
  expect(() => g.constant([1, 2], [3])).toThrow('constant: shape must hold 2 values, got [3]');
  expect(() => g.makeGraph({ y: g.add(g.input('x', [1]), g.input('x', [1])) })).toThrow(
    "graph: input names must be unique, got 'x' twice",
  );
});

test('gradients are refused off the path and for a loss that is not a scalar', () => {
  const x = g.input('x', [3]);
  const w = g.input('w', [3]);
  const loss = g.reduceSum(g.mul(x, g.stopGradient(w)), [0]);
  expect(() => gradients(loss, [w])).toThrow('got w [3] off the path');
  expect(() => gradients(x, [x])).toThrow('gradients: loss must have shape [] or [1], got [3]');
  expect(() => pullback([x], [loss], [x])).toThrow('pullback: cotangent 0 must be [3]');
});

test('frozen weights and inputs get no gradient nodes', () => {
  const x = g.input('x', ['N', 4]);
  const frozen = g.input('frozen', [4, 4]);
  const w = g.input('w', [4, 4]);
  const loss = g.reduceSum(g.matmul(g.matmul(x, frozen), w), [0, 1]);
  const countMatmuls = (wrt: readonly g.Tensor[]): number => {
    const grads = gradients(loss, wrt).map((grad, index) => [`d${index}`, grad] as const);
    return g.makeGraph({ loss, ...Object.fromEntries(grads) }).nodes.filter(({ op }) => op === 'matmul').length;
  };
  expect(countMatmuls([w])).toBe(3);
  expect(countMatmuls([w, frozen, x])).toBe(6);
});

test.each(runtimes)('%s checks what it is fed', async (_name, runtime) => {
  const x = g.input('x', ['B', 'T']);
  const y = g.input('y', ['2*T']);
  const ids = g.input('ids', ['B'], 'int64');
  const graph = g.makeGraph({ x: g.gatherRows(x, ids), y });
  const executable = await runtime.compile(graph);
  const feeds = {
    x: hostTensor(new Float32Array(6), [2, 3]),
    y: hostTensor(new Float32Array(6), [6]),
    ids: hostIds([1, 0]),
  };
  const { x: _x, ...missing } = feeds;
  const run = (changed: Record<string, HostTensor>): Promise<unknown> => executable.run({ ...feeds, ...changed });
  await expect(executable.run(feeds)).resolves.toBeDefined();
  await expect(executable.run(missing)).rejects.toThrow("feeds: every input must be fed, got no 'x'");
  await expect(run({ z: feeds.y })).rejects.toThrow("feeds: must be inputs of the graph (x,y,ids), got 'z'");
  await expect(run({ ids: feeds.y })).rejects.toThrow(
    "input 'ids': dtype must be int64, got float32 in a Float32Array",
  );
  await expect(run({ ids: hostIds([0, 1, 1]) })).rejects.toThrow(
    "input 'ids': shape must be [B] where B = 2, T = 3, got [3]",
  );
  await expect(run({ y: hostTensor(new Float32Array(4), [4]) })).rejects.toThrow(
    "input 'y': shape must be [2*T] where B = 2, T = 3, got [4]",
  );
  await expect(run({ x: hostTensor(new Float32Array(5), [2, 3]) })).rejects.toThrow('[2, 3] must hold 6 values, got 5');
  await expect(run({ x: hostTensor(new Float32Array(6), [6]) })).rejects.toThrow('shape must be [B, T], got [6]');
  await executable.dispose();
});

test.each(runtimes)('%s takes constants in place of feeds, and an input may be an output', async (_name, runtime) => {
  const x = g.input('x', ['N', 2]);
  const w = g.input('w', [2, 2]);
  const y = g.matmul(x, w);
  const graph = g.makeGraph({ x, y, again: y, fixed: g.constant([5], [1], 'int64') });
  const executable = await runtime.compile(graph, { constants: new Map([['w', Float32Array.of(0, 1, 1, 0)]]) });
  const results = await executable.run({ x: hostTensor(Float32Array.of(1, 2), [1, 2]) });
  expect(toNumbers(results.x!)).toEqual([1, 2]);
  expect(toNumbers(results.y!)).toEqual([2, 1]);
  expect(results.again).toEqual(results.y);
  expect(results.fixed).toEqual(hostIds([5]));
  await expect(runtime.compile(graph, { constants: new Map([['w', new Float32Array(3)]]) })).rejects.toThrow(
    "input 'w': [2, 2] must hold 4 values, got 3",
  );
  await expect(runtime.compile(graph, { constants: new Map([['v', new Float32Array(3)]]) })).rejects.toThrow(
    "constants: must be inputs of the graph, got 'v'",
  );
  await executable.dispose();
});

test('scattered sums with many repeated ids are right and equal bit for bit at 1 and 2 threads', async () => {
  const [table, ids, updates] = [
    g.input('table', [50, 64]),
    g.input('ids', ['N'], 'int64'),
    g.input('updates', ['N', 64]),
  ];
  const graph = g.makeGraph({ out: g.scatterAddRows(ids, updates, table) });
  const rng = createRng('scatter');
  const feeds = {
    table: randomFloats([50, 64], 'table'),
    ids: hostIds(Array.from({ length: 4000 }, () => rng.integer(50))),
    updates: randomFloats([4000, 64], 'updates'),
  };
  const run = async (runtime: Runtime): Promise<HostTensor> => {
    const executable = await runtime.compile(graph);
    const results = await executable.run(feeds);
    await executable.dispose();
    return results.out!;
  };
  const [expected, single] = await Promise.all(runtimes.map(([, runtime]) => run(runtime)));
  expect(await run(await createOrtRuntime({ threads: 2 }))).toEqual(single);
  expect(largestError(single!, expected!)).toBeLessThan(1e-4);
});

/** One decoder block on embeddings, with the loss of chosen tokens: every op that a model meets. */
function blockGraph(): g.Graph {
  const [heads, kvHeads, size, width, vocab] = [4, 2, 4, 16, 24];
  const weight = (name: string, shape: readonly number[]): g.Tensor => g.input(name, shape);
  const ids = g.input('ids', ['B', 'T'], 'int64');
  const [positions, targets] = [g.input('positions', ['B', 'T'], 'int64'), g.input('targets', ['B', 'T', 1], 'int64')];
  const [cos, sin, mask] = [
    g.input('cos', [16, size / 2]),
    g.input('sin', [16, size / 2]),
    g.input('mask', ['T', 'T']),
  ];
  const table = weight('table', [vocab, width]);
  const norms = [weight('norm1', [width]), weight('norm2', [width])];
  const [q, k, v, o] = ['q', 'k', 'v', 'o'].map((name) =>
    weight(name, name === 'k' || name === 'v' ? [width, kvHeads * size] : [width, heads * size]),
  );
  const [gate, up, down] = [weight('gate', [width, 24]), weight('up', [width, 24]), weight('down', [24, width])];
  const split = (x: g.Tensor, count: number): g.Tensor =>
    g.transpose(g.reshape(x, ['B', 'T', count, size]), [0, 2, 1, 3]);
  const group = (x: g.Tensor, count: number): g.Tensor => g.reshape(x, ['B', kvHeads, count, 'T', size]);
  const x = g.gatherRows(table, ids);
  const h = g.rmsNorm(x, norms[0]!, 1e-6);
  const queries = group(g.rope(split(g.matmul(h, q!), heads), positions, cos, sin), heads / kvHeads);
  const keys = group(g.rope(split(g.matmul(h, k!), kvHeads), positions, cos, sin), 1);
  const values = group(split(g.matmul(h, v!), kvHeads), 1);
  const scores = g.add(g.matmul(queries, keys, { transB: true, alpha: 1 / Math.sqrt(size) }), mask);
  const mixed = g.reshape(g.matmul(g.softmax(scores), values), ['B', heads, 'T', size]);
  const x1 = g.add(x, g.matmul(g.reshape(g.transpose(mixed, [0, 2, 1, 3]), ['B', 'T', heads * size]), o!));
  const h2 = g.rmsNorm(x1, norms[1]!, 1e-6);
  const x2 = g.add(x1, g.matmul(g.mul(g.silu(g.matmul(h2, gate)), g.matmul(h2, up)), down));
  const logprobs = g.takeAlongLast(g.logSoftmax(g.matmul(x2, table, { transB: true })), targets);
  const loss = g.neg(g.reduceMean(logprobs, [0, 1, 2]));
  const wrt = [table, ...norms, q!, k!, v!, o!, gate, up, down];
  const grads = gradients(loss, wrt);
  return g.makeGraph({ loss, ...Object.fromEntries(wrt.map((tensor, i) => [tensor.name!, grads[i]!])) });
}

test('all gradients of a decoder block: ONNX Runtime in float32 agrees with the reference', async () => {
  const graph = blockGraph();
  const [batch, length] = [2, 7];
  const rng = createRng('block ids');
  const random = (): number[] => Array.from({ length: batch * length }, () => rng.integer(24));
  const sizes = { B: batch, T: length };
  const feeds: Record<string, HostTensor> = {};
  for (const { name, shape } of graph.inputs) {
    const { data, shape: bound } = randomFloats(bindShape(shape, sizes), 'block', name!);
    feeds[name!] = hostTensor(
      (data as Float32Array).map((value) => value * 0.3),
      bound,
    );
  }
  feeds.ids = hostIds(random(), [batch, length]);
  feeds.targets = hostIds(random(), [batch, length, 1]);
  feeds.positions = hostIds(
    Array.from({ length: batch * length }, (_, i) => i % length),
    [batch, length],
  );
  feeds.mask = hostTensor(
    Float32Array.from({ length: length ** 2 }, (_, i) => (i % length > i / length ? -1e30 : 0)),
    [length, length],
  );
  const [expected, actual] = await Promise.all(
    runtimes.map(async ([, runtime]) => {
      const executable: Executable = await runtime.compile(graph);
      const results = await executable.run(feeds);
      await executable.dispose();
      return results;
    }),
  );
  for (const [name, tensor] of Object.entries(expected!)) {
    const scale = Math.max(...toNumbers(tensor).map(Math.abs));
    expect(largestError(actual![name]!, tensor) / scale, name).toBeLessThan(1e-5);
  }
});

test('a missing onnxruntime-node is a ConfigError with the line to type', async () => {
  vi.doMock('onnxruntime-node', () => {
    throw new Error('Cannot find package');
  });
  await expect(createOrtRuntime({ threads: 1 })).rejects.toThrow(
    'run: npm install --ignore-scripts onnxruntime-node@1.30.0',
  );
  vi.doUnmock('onnxruntime-node');
});

test('threads must be a whole number of at least 1', async () => {
  await expect(createOrtRuntime({ threads: 0 })).rejects.toThrow(
    'createOrtRuntime: threads must be a whole number of at least 1, got 0',
  );
});
