/** Every op of the table: gradients against central differences in float64, ONNX Runtime against the reference. */

import { describe, expect, test } from 'vitest';
import { ConfigError } from '../core/errors.ts';
import { createRng, type Rng } from '../core/rng.ts';
import { pullback } from './backward.ts';
import { input, makeGraph, type Tensor } from './builder.ts';
import { vjps } from './grad.ts';
import { type OpCase, opCases } from './op-cases.ts';
import type { Op } from './ops.ts';
import { type Feeds, type HostTensor, hostIds } from './runtime.ts';
import { createOrtRuntime } from './runtime-ort.ts';
import { createReferenceRuntime } from './runtime-reference.ts';

const opNames = Object.keys(opCases) as Op[];
const reference = createReferenceRuntime();

interface BuiltCase {
  readonly inputs: Readonly<Record<string, Tensor>>;
  readonly feeds: Feeds;
  readonly out: Tensor;
}

function randomFloats(rng: Rng, count: number, [from, to]: readonly [number, number] = [-1, 1]): Float64Array {
  return Float64Array.from({ length: count }, () => from + (to - from) * rng.uniform());
}

function buildCase(op: Op, opCase: OpCase): BuiltCase {
  const rng = createRng(op, opCase.name);
  const inputs: Record<string, Tensor> = {};
  const feeds: Record<string, HostTensor> = {};
  for (const [name, { sizes, shape = sizes, range, ids, isBool }] of Object.entries(opCase.inputs)) {
    inputs[name] = input(name, shape, ids ? 'int64' : isBool ? 'bool' : 'float32');
    const count = sizes.reduce((product, size) => product * size, 1);
    if (ids) feeds[name] = hostIds(ids, sizes);
    else if (isBool)
      feeds[name] = { dtype: 'bool', shape: sizes, data: Uint8Array.from({ length: count }, () => rng.integer(2)) };
    else feeds[name] = { dtype: 'float32', shape: sizes, data: randomFloats(rng, count, range) };
  }
  return { inputs, feeds, out: opCase.build(inputs) };
}

/** A graph of the gradients of `out` for the differentiable inputs, given a cotangent that is fed. */
function gradientGraph({ inputs, out }: BuiltCase, opCase: OpCase): Readonly<Record<string, Tensor>> {
  const names = Object.keys(inputs).filter(
    (name) => inputs[name]!.dtype === 'float32' && !opCase.inputs[name]!.isFrozen,
  );
  const cotangent = input('cotangent', out.shape);
  const grads = pullback(
    [out],
    [cotangent],
    names.map((name) => inputs[name]!),
  );
  return Object.fromEntries(names.map((name, index) => [name, grads[index]!]));
}

async function withCotangent(built: BuiltCase, opCase: OpCase): Promise<Feeds> {
  const executable = await reference.compile(makeGraph({ out: built.out }));
  const { shape } = (await executable.run(built.feeds)).out!;
  const count = shape.reduce((product, size) => product * size, 1);
  const data = randomFloats(createRng('cotangent', opCase.name), count);
  return { ...built.feeds, cotangent: { dtype: 'float32', shape, data } };
}

function expectClose(actual: HostTensor, expected: HostTensor): void {
  expect(actual.shape).toEqual(expected.shape);
  expect(actual.dtype).toBe(expected.dtype);
  for (let i = 0; i < expected.data.length; i++) {
    const [got, want] = [Number(actual.data[i]), Number(expected.data[i])];
    if (Math.abs(got - want) > 1e-6 + 1e-5 * Math.abs(want)) expect.fail(`element ${i}: got ${got}, must be ${want}`);
  }
}

async function checkGradients(op: Op, opCase: OpCase): Promise<void> {
  const built = buildCase(op, opCase);
  const feeds = await withCotangent(built, opCase);
  const cotangent = feeds.cotangent!.data as Float64Array;
  const forward = await reference.compile(makeGraph({ out: built.out }));
  const graph = makeGraph(gradientGraph(built, opCase));
  const needed = new Set(graph.inputs.map((tensor) => tensor.name));
  const backward = await reference.compile(graph);
  const analytic = await backward.run(Object.fromEntries(Object.entries(feeds).filter(([name]) => needed.has(name))));
  const objective = async (name: string, data: Float64Array): Promise<number> => {
    const { out } = await forward.run({ ...built.feeds, [name]: { ...built.feeds[name]!, data } });
    return (out!.data as Float64Array).reduce((total, value, i) => total + value * cotangent[i]!, 0);
  };
  const step = 1e-5;
  for (const [name, { data: gradient, shape }] of Object.entries(analytic)) {
    const values = built.feeds[name]!.data as Float64Array;
    expect(shape).toEqual(built.feeds[name]!.shape);
    const largest = Math.max(...(gradient as Float64Array).map(Math.abs), 1e-3);
    for (let i = 0; i < values.length; i++) {
      const up = await objective(name, values.with(i, values[i]! + step));
      const down = await objective(name, values.with(i, values[i]! - step));
      const error = Math.abs((up - down) / (2 * step) - (gradient as Float64Array)[i]!);
      if (error > 1e-6 * largest) expect.fail(`d/d${name}[${i}]: error ${error}, largest gradient ${largest}`);
    }
  }
}

describe.each(opNames)('%s', (op) => {
  test.each(opCases[op])('gradient: $name', async (opCase) => {
    if (vjps[op] === null) {
      const built = buildCase(op, opCase);
      expect(() => pullback([built.out], [input('cotangent', built.out.shape)], Object.values(built.inputs))).toThrow(
        ConfigError,
      );
    } else await checkGradients(op, opCase);
  });

  test('ONNX Runtime agrees with the reference, at 1 and 2 threads bit for bit', async () => {
    const runtimes = [await createOrtRuntime({ threads: 1 }), await createOrtRuntime({ threads: 2 })];
    for (const opCase of opCases[op]) {
      const built = buildCase(op, opCase);
      const outputs: Record<string, Tensor> = { out: built.out };
      let feeds = built.feeds;
      if (vjps[op] !== null) {
        feeds = await withCotangent(built, opCase);
        for (const [name, grad] of Object.entries(gradientGraph(built, opCase))) outputs[`d/${name}`] = grad;
      }
      const graph = makeGraph(outputs);
      const executables = await Promise.all([reference, ...runtimes].map((runtime) => runtime.compile(graph)));
      const rounded = Object.fromEntries(
        graph.inputs.map(({ name, dtype }) => {
          const feed = feeds[name!]!;
          return [name!, dtype === 'float32' ? { ...feed, data: Float32Array.from(feed.data as Float64Array) } : feed];
        }),
      );
      const [expected, single, double] = await Promise.all(executables.map((executable) => executable.run(rounded)));
      for (const name of Object.keys(outputs)) expectClose(single![name]!, expected![name]!);
      expect(double).toEqual(single);
      await Promise.all(executables.map((executable) => executable.dispose()));
    }
  });
});

test('the tables of ops, gradients and cases have the same keys', () => {
  expect(Object.keys(vjps).sort()).toEqual([...opNames].sort());
});
