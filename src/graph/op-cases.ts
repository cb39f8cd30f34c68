/**
 * Cases of every op, for tests only: an op without cases does not compile. Layer 1. The gradient check and the comparison of
 * executors iterate this table. Values stay away from kinks and poles.
 */

import * as g from './builder.ts';
import type { Op } from './ops.ts';
import type { Shape } from './sizes.ts';

export interface CaseInput {
  /** Sizes of the values that are fed. */
  readonly sizes: readonly number[];
  /** Declared shape, where it is not `sizes`. */
  readonly shape?: Shape;
  /** Range of float values; [−1, 1] when left out. */
  readonly range?: readonly [number, number];
  /** Makes this an int64 input of these values. */
  readonly ids?: readonly number[];
  /** Makes this a bool input of random values. */
  readonly isBool?: boolean;
  /** Has no gradient by definition. */
  readonly isFrozen?: boolean;
}

export interface OpCase {
  readonly name: string;
  readonly inputs: Readonly<Record<string, CaseInput>>;
  readonly build: (inputs: Readonly<Record<string, g.Tensor>>) => g.Tensor;
}

type Inputs = Readonly<Record<string, g.Tensor>>;
type Build = (inputs: Inputs) => g.Tensor;
const positive = [0.5, 2] as const;

const unaryCases = (f: (x: g.Tensor) => g.Tensor, range?: readonly [number, number]): readonly OpCase[] => {
  const build: Build = ({ x }) => f(x!);
  const withRange = range === undefined ? {} : { range };
  return [
    { name: 'vector', inputs: { x: { sizes: [7], ...withRange } }, build },
    { name: 'symbolic', inputs: { x: { sizes: [2, 1, 5], shape: ['B', 1, 'T'], ...withRange } }, build },
    { name: 'scalar', inputs: { x: { sizes: [], ...withRange } }, build },
  ];
};

const binaryCases = (
  f: (a: g.Operand, b: g.Operand) => g.Tensor,
  range: readonly [number, number] = [-1, 1],
  isRepeatable = true,
): readonly OpCase[] => {
  const build: Build = ({ a, b }) => f(a!, b!);
  const pair = (a: readonly number[], b: readonly number[]): OpCase['inputs'] => ({
    a: { sizes: a, range },
    b: { sizes: b, range },
  });
  const repeated: OpCase = {
    name: 'repeated input',
    inputs: { a: { sizes: [3, 5], range } },
    build: ({ a }) => f(a!, a!),
  };
  return [
    { name: 'equal shapes', inputs: pair([3, 5], [3, 5]), build },
    { name: 'leading axes', inputs: pair([2, 3, 5], [5]), build },
    { name: 'both broadcast', inputs: pair([3, 1, 5], [2, 1, 4, 1]), build },
    { name: 'scalar first', inputs: pair([], [1, 3]), build },
    {
      name: 'symbolic',
      inputs: { a: { sizes: [2, 3, 4], shape: ['B', 'T', 4], range }, b: { sizes: [3, 1], shape: ['T', 1], range } },
      build,
    },
    ...(isRepeatable ? [repeated] : []),
  ];
};

const comparisonCases = (f: (a: g.Operand, b: g.Operand) => g.Tensor): readonly OpCase[] => [
  ...binaryCases(f),
  {
    name: 'ids',
    inputs: { a: { sizes: [2, 3], ids: [1, 2, 3, 4, 5, 6] }, b: { sizes: [3], ids: [1, 9, 3] } },
    build: ({ a, b }) => f(a!, b!),
  },
];

const reductionCases = (
  f: (x: g.Tensor, axes: readonly number[], keepDims?: boolean) => g.Tensor,
): readonly OpCase[] => [
  { name: 'last axis', inputs: { x: { sizes: [3, 5] } }, build: ({ x }) => f(x!, [-1]) },
  { name: 'first axis kept', inputs: { x: { sizes: [3, 5] } }, build: ({ x }) => f(x!, [0], true) },
  { name: 'all', inputs: { x: { sizes: [3, 1, 5], shape: ['B', 1, 'T'] } }, build: ({ x }) => f(x!, [0, 1, 2]) },
  { name: 'none', inputs: { x: { sizes: [3, 2] } }, build: ({ x }) => f(x!, []) },
  { name: 'size 1', inputs: { x: { sizes: [3, 1, 5] } }, build: ({ x }) => f(x!, [1]) },
  { name: 'symbols move', inputs: { x: { sizes: [4, 2, 3], shape: [4, 'B', 'T'] } }, build: ({ x }) => f(x!, [0]) },
];

const rowCases = (f: (x: g.Tensor) => g.Tensor): readonly OpCase[] => [
  { name: 'matrix', inputs: { x: { sizes: [3, 7], range: [-3, 3] } }, build: ({ x }) => f(x!) },
  { name: 'size 1', inputs: { x: { sizes: [3, 1] } }, build: ({ x }) => g.mul(f(x!), x!) },
  { name: 'symbolic', inputs: { x: { sizes: [2, 3, 5], shape: ['B', 'T', 'S'] } }, build: ({ x }) => f(x!) },
];

const turns = [[false, false] as const, [false, true] as const, [true, false] as const, [true, true] as const];

function matmulCases(): readonly OpCase[] {
  const cases: OpCase[] = [];
  const batches: readonly (readonly [string, readonly number[], readonly number[]])[] = [
    ['matrices', [], []],
    ['linear', [2, 5], []],
    ['one to many', [], [2]],
    ['batches', [2, 3], [2, 3]],
    ['grouped heads', [2, 2, 3], [2, 2, 1]],
  ];
  for (const [name, batchA, batchB] of batches) {
    for (const [transA, transB] of turns) {
      const a = transA ? [...batchA, 4, 3] : [...batchA, 3, 4];
      const b = transB ? [...batchB, 5, 4] : [...batchB, 4, 5];
      cases.push({
        name: `${name}${transA ? ', Aᵀ' : ''}${transB ? ', Bᵀ' : ''}`,
        inputs: { a: { sizes: a }, b: { sizes: b } },
        build: ({ a, b }) => g.matmul(a!, b!, { transA, transB, alpha: 0.5 }),
      });
    }
  }
  cases.push(
    {
      name: 'symbolic linear',
      inputs: { a: { sizes: [2, 3, 4], shape: ['B', 'T', 4] }, b: { sizes: [4, 5] } },
      build: ({ a, b }) => g.matmul(a!, b!),
    },
    { name: 'repeated input', inputs: { a: { sizes: [3, 4] } }, build: ({ a }) => g.matmul(a!, a!, { transB: true }) },
    {
      name: 'size 1',
      inputs: { a: { sizes: [1, 1] }, b: { sizes: [2, 1, 1] } },
      build: ({ a, b }) => g.matmul(a!, b!),
    },
  );
  return cases;
}

const reshapeCases: readonly OpCase[] = [
  { name: 'fixed', inputs: { x: { sizes: [3, 4] } }, build: ({ x }) => g.reshape(x!, [2, 6]) },
  { name: 'to scalar', inputs: { x: { sizes: [1, 1] } }, build: ({ x }) => g.reshape(x!, []) },
  {
    name: 'split heads',
    inputs: { x: { sizes: [2, 3, 8], shape: ['B', 'T', 8] } },
    build: ({ x }) => g.reshape(x!, ['B', 'T', 2, 4]),
  },
  {
    name: 'flatten two symbols',
    inputs: { x: { sizes: [2, 3, 4], shape: ['B', 'T', 4] } },
    build: ({ x }) => g.reshape(x!, ['T*B', 4]),
  },
  {
    name: 'symbols move',
    inputs: { x: { sizes: [2, 3, 4], shape: ['B', 'T', 4] } },
    build: ({ x }) => g.reshape(x!, [1, 'B', 'T', 4]),
  },
];

const rows = (ids: readonly number[], sizes: readonly number[] = [ids.length]): CaseInput => ({ sizes, ids });

const gatherCases: readonly OpCase[] = [
  {
    name: 'repeated ids',
    inputs: { table: { sizes: [5, 3] }, ids: rows([4, 0, 4, 2]) },
    build: ({ table, ids }) => g.gatherRows(table!, ids!),
  },
  {
    name: 'ids of rank 2, rows of rank 2',
    inputs: {
      table: { sizes: [4, 2, 3], shape: ['R', 2, 3] },
      ids: { ...rows([1, 1, 3, 0], [2, 2]), shape: ['B', 'T'] },
    },
    build: ({ table, ids }) => g.gatherRows(table!, ids!),
  },
  {
    name: 'table of rank 1',
    inputs: { table: { sizes: [4] }, ids: rows([3, 3, 1]) },
    build: ({ table, ids }) => g.gatherRows(table!, ids!),
  },
];

const scatterAddRowsCases: readonly OpCase[] = [
  {
    name: 'repeated ids',
    inputs: { table: { sizes: [5, 3] }, ids: rows([4, 0, 4, 4]), updates: { sizes: [4, 3] } },
    build: ({ table, ids, updates }) => g.addRows(table!, ids!, updates!),
  },
  {
    name: 'zeros, ids of rank 2',
    inputs: {
      table: { sizes: [4, 2, 3], isFrozen: true },
      ids: rows([1, 1, 3, 0], [2, 2]),
      updates: { sizes: [2, 2, 2, 3] },
    },
    build: ({ table, ids, updates }) => g.scatterAddRows(ids!, updates!, table!),
  },
  {
    name: 'table of rank 1',
    inputs: { table: { sizes: [4] }, ids: rows([3, 3]), updates: { sizes: [2] } },
    build: ({ table, ids, updates }) => g.addRows(table!, ids!, updates!),
  },
];

const alongLastIds = { sizes: [2, 3, 2], shape: ['B', 'T', 2], ids: [0, 4, 2, 2, 3, 1, 1, 1, 0, 0, 4, 3] } as const;

const ropeInputs: OpCase['inputs'] = {
  x: { sizes: [2, 3, 4, 6], shape: ['B', 3, 'T', 6] },
  positions: { sizes: [2, 4], shape: ['B', 'T'], ids: [0, 1, 2, 3, 5, 6, 0, 1] },
  cos: { sizes: [8, 3], isFrozen: true },
  sin: { sizes: [8, 3], isFrozen: true },
};

/** One row an op, same keys as `ops.ts`. */
export const opCases: { readonly [K in Op]: readonly OpCase[] } = {
  neg: unaryCases(g.neg),
  exp: unaryCases(g.exp),
  log: unaryCases(g.log, positive),
  sqrt: unaryCases(g.sqrt, positive),
  reciprocal: unaryCases(g.reciprocal, positive),
  sigmoid: unaryCases(g.sigmoid, [-4, 4]),
  tanh: unaryCases(g.tanh, [-2, 2]),
  silu: unaryCases(g.silu, [-4, 4]),
  geluTanh: unaryCases(g.geluTanh, [-4, 4]),
  stopGradient: unaryCases(g.stopGradient),
  add: binaryCases(g.add),
  sub: binaryCases(g.sub),
  mul: binaryCases(g.mul),
  div: binaryCases(g.div, positive),
  minimum: binaryCases(g.minimum, [-1, 1], false),
  maximum: binaryCases(g.maximum, [-1, 1], false),
  lessOrEqual: comparisonCases(g.lessOrEqual),
  equal: comparisonCases(g.equal),
  where: [
    {
      name: 'equal shapes',
      inputs: { condition: { sizes: [3, 5], isBool: true }, a: { sizes: [3, 5] }, b: { sizes: [3, 5] } },
      build: ({ condition, a, b }) => g.where(condition!, a!, b!),
    },
    {
      name: 'all broadcast',
      inputs: { condition: { sizes: [3, 1], isBool: true }, a: { sizes: [2, 1, 5] }, b: { sizes: [] } },
      build: ({ condition, a, b }) => g.where(condition!, a!, b!),
    },
  ],
  toIds: unaryCases(g.toIds, [-9, 9]),
  reduceSum: reductionCases(g.reduceSum),
  reduceMean: reductionCases(g.reduceMean),
  softmax: [
    ...rowCases(g.softmax),
    {
      name: 'attention',
      inputs: { scores: { sizes: [2, 3, 5] }, values: { sizes: [2, 5, 4] } },
      build: ({ scores, values }) => g.matmul(g.softmax(scores!), values!, { alpha: 0.5 }),
    },
  ],
  logSoftmax: [
    ...rowCases(g.logSoftmax),
    {
      name: 'chosen twice',
      inputs: { x: { sizes: [2, 3, 5], shape: ['B', 'T', 5] }, ids: alongLastIds },
      build: ({ x, ids }) => g.takeAlongLast(g.logSoftmax(x!), ids!),
    },
  ],
  rmsNorm: [
    {
      name: 'matrix',
      inputs: { x: { sizes: [3, 8] }, weight: { sizes: [8] } },
      build: ({ x, weight }) => g.rmsNorm(x!, weight!, 1e-6),
    },
    {
      name: 'symbolic, odd width',
      inputs: { x: { sizes: [2, 3, 5], shape: ['B', 'T', 5] }, weight: { sizes: [5] } },
      build: ({ x, weight }) => g.rmsNorm(x!, weight!, 1e-2),
    },
    {
      name: 'size 1',
      inputs: { x: { sizes: [4, 1], range: positive }, weight: { sizes: [1] } },
      build: ({ x, weight }) => g.rmsNorm(x!, weight!, 0.5),
    },
  ],
  matmul: matmulCases(),
  matmulAdd: turns.map(([transA, transB]) => ({
    name: `Aᵀ ${transA}, Bᵀ ${transB}`,
    inputs: { a: { sizes: transA ? [4, 3] : [3, 4] }, b: { sizes: transB ? [5, 4] : [4, 5] }, c: { sizes: [3, 5] } },
    build: ({ a, b, c }) => g.matmulAdd(a!, b!, c!, { transA, transB, alpha: 0.5 }),
  })),
  reshape: reshapeCases,
  reshapeLike: [
    {
      name: 'two symbols from one',
      inputs: {
        x: { sizes: [6, 4], shape: ['B*T', 4] },
        like: { sizes: [2, 3, 4], shape: ['B', 'T', 4], isFrozen: true },
      },
      build: ({ x, like }) => g.reshapeLike(x!, like!),
    },
  ],
  splitRows: [
    {
      name: 'rows of a batch, and heads',
      inputs: {
        x: { sizes: [6, 8], shape: ['B*T', 8] },
        like: { sizes: [2, 3], shape: ['B', 'T'], isFrozen: true },
      },
      build: ({ x, like }) => g.splitRows(x!, like!, [2, 4]),
    },
  ],
  transpose: [
    { name: 'matrix', inputs: { x: { sizes: [3, 5] } }, build: ({ x }) => g.transpose(x!, [1, 0]) },
    {
      name: 'cycle of axes',
      inputs: { x: { sizes: [2, 3, 1, 4], shape: ['B', 'T', 1, 4] } },
      build: ({ x }) => g.transpose(x!, [2, 0, 3, 1]),
    },
  ],
  slice: [
    { name: 'middle', inputs: { x: { sizes: [3, 7] } }, build: ({ x }) => g.slice(x!, -1, 2, 5) },
    { name: 'one row', inputs: { x: { sizes: [3, 4], shape: [3, 'T'] } }, build: ({ x }) => g.slice(x!, 0, 2, 3) },
  ],
  pad: [
    { name: 'both sides', inputs: { x: { sizes: [2, 3], shape: ['B', 3] } }, build: ({ x }) => g.pad(x!, 1, 2, 7) },
    { name: 'nothing', inputs: { x: { sizes: [2, 3] } }, build: ({ x }) => g.pad(x!, 0, 0, 2) },
  ],
  concat: [
    {
      name: 'three parts, one twice',
      inputs: { a: { sizes: [2, 3], shape: ['B', 3] }, b: { sizes: [2, 1], shape: ['B', 1] } },
      build: ({ a, b }) => g.concat([a!, b!, a!], -1),
    },
    { name: 'one part', inputs: { a: { sizes: [2, 3] } }, build: ({ a }) => g.concat([a!], 0) },
  ],
  concatLike: [
    {
      name: 'symbolic sizes',
      inputs: {
        a: { sizes: [2, 3], shape: ['B', 'S'] },
        b: { sizes: [2, 4], shape: ['B', 'T'] },
        like: { sizes: [7], shape: ['W'] },
      },
      build: ({ a, b, like }) => g.concatLike(a!, b!, like!),
    },
  ],
  sliceLike: (['start', 'end'] as const).map((from) => ({
    name: `the ${from}`,
    inputs: { x: { sizes: [2, 7], shape: ['B', 'W'] }, like: { sizes: [5, 3], shape: [5, 'S'] } },
    build: ({ x, like }: Inputs) => g.sliceLike(x!, like!, from),
  })),
  broadcastTo: [
    { name: 'shape', inputs: { x: { sizes: [3, 1] } }, build: ({ x }) => g.broadcastTo(x!, [2, 3, 5]) },
    {
      name: 'shape with symbols',
      inputs: { x: { sizes: [3, 1], shape: ['T', 1] } },
      build: ({ x }) => g.broadcastTo(x!, [2, 'T', 4]),
    },
    {
      name: 'like a tensor',
      inputs: { x: { sizes: [1, 4] }, like: { sizes: [2, 3, 4], shape: ['B', 'T', 4], isFrozen: true } },
      build: ({ x, like }) => g.broadcastTo(x!, like!),
    },
  ],
  gatherRows: gatherCases,
  scatterAddRows: scatterAddRowsCases,
  scatterRows: [
    {
      name: 'rows of rank 1',
      inputs: {
        data: { sizes: [5, 3], shape: ['R', 3] },
        ids: { ...rows([4, 1]), shape: ['N'] },
        rows: { sizes: [2, 3], shape: ['N', 3] },
      },
      build: ({ data, ids, rows }) => g.scatterRows(data!, ids!, rows!),
    },
    {
      name: 'rows of rank 2',
      inputs: { data: { sizes: [3, 2, 2] }, ids: rows([2]), rows: { sizes: [1, 2, 2] } },
      build: ({ data, ids, rows }) => g.scatterRows(data!, ids!, rows!),
    },
  ],
  takeAlongLast: [
    {
      name: 'repeated ids',
      inputs: { x: { sizes: [2, 3, 5], shape: ['B', 'T', 5] }, ids: alongLastIds },
      build: ({ x, ids }) => g.takeAlongLast(x!, ids!),
    },
  ],
  scatterAddAlongLast: [
    {
      name: 'repeated ids',
      inputs: {
        base: { sizes: [2, 3, 5], shape: ['B', 'T', 5] },
        ids: alongLastIds,
        updates: { sizes: [2, 3, 2], shape: ['B', 'T', 2] },
      },
      build: ({ base, ids, updates }) => g.addAlongLast(base!, ids!, updates!),
    },
    {
      name: 'zeros',
      inputs: { like: { sizes: [2, 5], isFrozen: true }, ids: rows([1, 1, 0, 4], [2, 2]), updates: { sizes: [2, 2] } },
      build: ({ like, ids, updates }) => g.scatterAddAlongLast(ids!, updates!, like!),
    },
  ],
  rope: [
    { name: 'forward', inputs: ropeInputs, build: ({ x, positions, cos, sin }) => g.rope(x!, positions!, cos!, sin!) },
    {
      name: 'inverse',
      inputs: ropeInputs,
      build: ({ x, positions, cos, sin }) => g.rope(x!, positions!, cos!, sin!, { inverse: true }),
    },
  ],
};
