/** The benchmarks: what they count is what is executed, and the report has the shape that tools read. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { addComparison, measurePeer } from '../bench/compare.ts';
import { fitLine } from '../bench/fit.ts';
import { countMatmulFlops, createFlopCounter, distinctMatmuls } from '../bench/flops.ts';
import { median } from '../bench/measure.ts';
import { writeModelFolder } from '../bench/model-folder.ts';
import { createModel, lora } from '../bench/models.ts';
import { withLayers } from '../bench/models-by-key.ts';
import { readOptions } from '../bench/options.ts';
import { runScript } from '../bench/peer-run.ts';
import { Report } from '../bench/report.ts';
import { readHfConfig } from '../src/formats/hf-config.ts';
import { readSafetensors } from '../src/formats/safetensors.ts';
import { loadTokenizer } from '../src/formats/tokenizer.ts';
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

test('a straight line through points on one, and how much of the variance it explains of others', () => {
  expect(fitLine([1, 2, 3].map((x) => [x, 3 * x + 2]))).toEqual({ slope: 3, intercept: 2, r2: 1 });
  // By hand: means 1 and 1; slope (−1·−1 + 1·0) / 2 = 0.5; residuals 0.5, −1, 0.5 of deviations −1, 1, 0.
  expect(
    fitLine([
      [0, 0],
      [1, 2],
      [2, 1],
    ]),
  ).toEqual({ slope: 0.5, intercept: 0.5, r2: 0.25 });
});

test('options: unknown stages and models are refused by name, peers is the stages that have some', () => {
  expect(readOptions(['--only', 'peers']).stages).toEqual(['training', 'sampling', 'step']);
  expect(readOptions(['--models', '27M,3M']).models).toEqual(['3M', '27M']);
  expect(() => readOptions(['--only', 'sampling,nothing'])).toThrow("got 'nothing'");
  expect(() => readOptions(['--models', '7B'])).toThrow("--models: must be some of starter,3M,27M,135M, got '7B'");
  expect(() => readOptions(['--threads', '0'])).toThrow("got '0'");
});

const ours = { name: 'ours', tokensPerSecond: () => 300 };

test('a comparison: the goal stands on the row of the fastest precision, met or missed', () => {
  const report = new Report();
  const speeds = [200, 100].map((tokensPerSecond) => ({ peer: 'peer', label: `p${tokensPerSecond}`, tokensPerSecond }));
  addComparison(report, [ours], { peer: 'peer', speeds, reason: '' }, { goal: 2 });
  const row = { name: 'ours', value: 300, unit: 'tokens/s' };
  expect(report.results).toEqual([
    { ...row, peer: 'peer, p200', ratio: 1.5, goal: 2, isMet: false },
    { ...row, peer: 'peer, p100', ratio: 3 },
  ]);
});

test('a peer that does not run is a row without ratio that says why', async () => {
  const job = { environment: 'python', script: 'no-such-script.py', input: { threads: 1 }, timeoutMs: 1000 } as const;
  const report = new Report();
  const peer = {
    name: 'peer',
    variants: [
      { label: 'a', job },
      { label: 'b', job: { reason: 'too slow' } },
    ],
  };
  addComparison(report, [ours], await measurePeer(report, 'work', peer), { goal: 2 });
  expect(report.results).toEqual([
    {
      ...{ name: 'ours', value: 300, unit: 'tokens/s', peer: 'peer', ratio: null, goal: 2, isMet: null },
      reason: expect.stringMatching(/; too slow$/),
    },
  ]);
});

test("a peer's script: its last line is the report, its last error the reason, and it does not outlive its limit", async () => {
  const run = (code: string, timeoutMs = 10_000): Promise<string> =>
    runScript(process.execPath, ['-e', code], '[7]', { input: { threads: 3 }, timeoutMs });
  const echo = 'process.stdin.on("data", (text) => console.log(String(text), process.env.OMP_NUM_THREADS))';
  expect(await run(echo)).toBe('[7] 3\n');
  await expect(run('console.error("first"); console.error("no model"); process.exit(3)')).rejects.toThrow(
    'ended with exit code 3: no model',
  );
  await expect(run('setInterval(() => {}, 1000)', 200)).rejects.toThrow('did not end within 0.2 s');
});

test('a model folder holds the weights that are benched, under a name that follows them', async () => {
  await using folder = await temporaryFolder();
  const model = createModel(0);
  const directory = await writeModelFolder(model, folder.path);
  expect(await readHfConfig(directory)).toEqual(model.config);
  expect(await readSafetensors(join(directory, 'model.safetensors'))).toEqual(model.parameters);
  expect((await loadTokenizer(directory)).vocabSize).toBe(model.config.vocabSize);
  expect(await writeModelFolder(model, folder.path)).toBe(directory);
  expect(await writeModelFolder(withLayers(model, 1), folder.path)).not.toBe(directory);
});

test('npm run bench -- --quick --json ends with the report, peers that are not there included', async () => {
  await using folder = await temporaryFolder();
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [join(root, 'dist/bench/main.js'), '--quick', '--json', '--out', join(folder.path, 'out.json')],
    { env: { ...process.env, ART_BENCH_PEERS: join(folder.path, 'peers') } },
  );
  const report = JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '');
  expect(Object.keys(report)).toEqual(['machine', 'ceilingGflops', 'results']);
  expect(report.machine).toMatchObject({ node: process.versions.node, onnxruntime: expect.any(String) });
  expect(report.ceilingGflops).toBeGreaterThan(0);
  const units = new Set(report.results.map((result: { unit: string }) => result.unit));
  expect([...units].sort()).toEqual([
    'GB',
    'completion tokens/s',
    'ms/layer',
    'ms/pass',
    'ms/sequence',
    'ms/token',
    'requests/s',
    's',
    'tokens',
    'tokens/s',
  ]);
  for (const result of report.results) {
    if (!result.unit.startsWith('ms/')) expect(result.value, result.name).toBeGreaterThan(0);
    if (result.ceilingShare !== undefined) expect(result.ceilingShare, result.name).toBeGreaterThan(0);
    if (result.ratio !== undefined) expect(result.peer, result.name).toEqual(expect.any(String));
    if (result.goal !== undefined) expect(result.isMet, result.name).toBe(result.ratio >= result.goal);
  }
  const file = JSON.parse(await readFile(join(folder.path, 'out.json'), 'utf8'));
  expect(file.results).toEqual(report.results);
  expect(file.details.find(({ samples }: { samples?: unknown[] }) => samples !== undefined).samples[0]).toEqual({
    seconds: expect.any(Number),
    cpuSeconds: expect.any(Number),
  });
  expect(stdout).toContain("peers of 'llama' are not measured: not installed");
});

async function temporaryFolder(): Promise<AsyncDisposable & { readonly path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'art-bench-test-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}
