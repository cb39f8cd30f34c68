/** The layers of `src/`: imports only go down, nothing heavy is loaded by accident, and nothing goes round in circles. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { findPath, type Import, isTest, listFiles, readImports, root } from './source-imports.ts';

/** What each layer may import beside itself. A file that stands directly in `src/` is a layer of its own. */
const layers: Readonly<Record<string, readonly string[]>> = {
  core: [],
  wire: ['core'],
  graph: ['core'],
  formats: ['core'],
  hub: ['formats', 'core'],
  nn: ['graph', 'formats', 'core'],
  infer: ['nn', 'graph', 'formats', 'core'],
  train: ['nn', 'graph', 'formats', 'core'],
  engines: ['infer', 'train', 'nn', 'graph', 'formats', 'core'],
  server: ['engines', 'hub', 'formats', 'wire', 'core'],
  export: ['server', 'nn', 'formats', 'wire', 'core'],
  sdk: ['wire', 'core'],
  rewards: ['sdk', 'wire', 'core'],
  trackers: ['sdk', 'core'],
  parquet: ['formats', 'sdk', 'wire', 'core'],
  environments: ['sdk', 'core'],
  integrations: ['sdk', 'core'],
  mcp: ['rewards', 'sdk', 'core'],
  testing: ['engines', 'core'],
  'local-backend.ts': ['server', 'sdk', 'core'],
  'index.ts': ['local-backend.ts', 'rewards', 'trackers', 'sdk', 'wire', 'core'],
  cli: ['local-backend.ts', 'export', 'parquet', 'server', 'hub', 'sdk', 'core'],
};

/** The layers that import a package. Every other package of the manifest is for the build and the tests. */
const packages: Readonly<Record<string, readonly string[]>> = {
  '@ai-sdk/openai-compatible': ['integrations'],
  '@hono/node-server': ['server'],
  '@huggingface/gguf': ['formats'],
  '@huggingface/hub': ['hub'],
  '@huggingface/jinja': ['formats'],
  '@huggingface/tokenizers': ['formats'],
  '@langchain/core': ['integrations'],
  '@langchain/openai': ['integrations'],
  '@modelcontextprotocol/sdk': ['mcp'],
  '@opentelemetry/api': ['server', 'trackers'],
  '@opentelemetry/exporter-metrics-otlp-http': ['trackers'],
  '@opentelemetry/exporter-trace-otlp-http': ['cli', 'trackers'],
  '@opentelemetry/sdk-metrics': ['trackers'],
  '@opentelemetry/sdk-trace-node': ['cli'],
  '@mlc-ai/web-xgrammar': ['infer'],
  aws4fetch: ['server'],
  'cli-progress': ['sdk', 'hub'],
  commander: ['cli'],
  'eventsource-parser': ['sdk'],
  'fastest-levenshtein': ['rewards'],
  hono: ['server'],
  hyparquet: ['parquet'],
  'hyparquet-writer': ['parquet'],
  'onnxruntime-node': ['graph'],
  openai: ['sdk', 'rewards', 'mcp', 'environments'],
  'p-limit': ['sdk', 'rewards'],
  pino: ['server', 'cli'],
  'prom-client': ['server'],
  ws: ['environments'],
  zod: ['wire', 'formats', 'hub', 'server', 'sdk', 'rewards', 'trackers', 'parquet', 'environments', 'mcp'],
};

const ortFile = 'src/graph/runtime-ort.ts';
/** The threads of the embedded engine's process. */
const threads = [
  'src/engines/embedded/process.ts',
  'src/engines/embedded/trainer-thread.ts',
  'src/train/lane-thread.ts',
];
/** Them, and what the trainer's thread starts lanes with. */
const ortUsers = [...threads, 'src/train/lanes.ts', 'src/train/start-trainer.ts'];

/** Cases and fixtures of the tests beside them. */
const testSupport = [
  'src/graph/op-cases.ts',
  'src/server/testing-model.ts',
  'src/engines/contract.ts',
  'src/engines/contract-errors.ts',
  'src/engines/contract-sampling.ts',
  'src/engines/contract-subject.ts',
  'src/engines/contract-losses.ts',
  'src/engines/contract-training.ts',
];

const files = listFiles('src').filter((file) => !isTest(file));
const sources = files.filter((file) => !testSupport.includes(file));
const imports = sources.flatMap((file) => readImports(file));

const layerOf = (file: string): string => file.split('/')[1] ?? '';
const isFile = (target: string): boolean => /^(src|examples|bench|test)\//.test(target);
const report = ({ file, line, target }: Import, rule: string): string => `${file}:${line} imports ${target}: ${rule}`;

function layerViolations(list: readonly Import[]): string[] {
  return list.flatMap((item) => {
    const layer = layerOf(item.file);
    const below = layers[layer];
    if (below === undefined) return [`${item.file}: '${layer}' must be a layer in test/layers.test.ts`];
    if (!isFile(item.target)) return [];
    const isAllowed = item.target.startsWith('src/') && [layer, ...below].includes(layerOf(item.target));
    return isAllowed ? [] : [report(item, `${layer} may import ${[layer, ...below].join(', ')}`)];
  });
}

function packageViolations(list: readonly Import[]): string[] {
  return list.flatMap((item) => {
    const layer = layerOf(item.file);
    if (isFile(item.target)) return [];
    if (item.target.startsWith('node:')) {
      return ['core', 'wire'].includes(layer) ? [report(item, `${layer} does no I/O: no built-in modules`)] : [];
    }
    const users = packages[item.target];
    if (users === undefined) return [report(item, 'must be a package in test/layers.test.ts')];
    return users.includes(layer) ? [] : [report(item, `only ${users.join(', ')} may import this package`)];
  });
}

/** Each cycle of static imports once, as a path that ends where it begins. */
function findCycles(list: readonly Import[]): string[] {
  const cycles = new Map<string, string>();
  for (const { file, target, kind } of list) {
    if (kind !== 'static' || !isFile(target)) continue;
    const back = target === file ? [file] : findPath(list, target, (reached) => reached === file);
    const members = [...new Set(back)].sort().join();
    if (back !== null && !cycles.has(members)) cycles.set(members, [file, ...back].join(' → '));
  }
  return [...cycles.values()];
}

describe('layers', () => {
  test('imports only go down', () => {
    expect(layerViolations(imports)).toEqual([]);
  });

  test('packages are imported by the layers that own their subject', () => {
    expect(packageViolations(imports)).toEqual([]);
  });

  test('every package that is imported is a dependency, and every dependency is imported', () => {
    const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    const declared = Object.keys({
      ...manifest.dependencies,
      ...manifest.optionalDependencies,
      ...manifest.peerDependencies,
    });
    const used = new Set(
      imports.map(({ target }) => target).filter((name) => !isFile(name) && !name.startsWith('node:')),
    );
    expect([...used].sort()).toEqual(declared.sort());
  });

  test('there is no cycle', () => {
    expect(findCycles(imports)).toEqual([]);
  });

  test('test support is imported by tests alone', () => {
    const wrong = imports.filter(({ target }) => testSupport.includes(target) || isTest(target));
    expect(wrong.map((item) => report(item, 'test support is for tests'))).toEqual([]);
  });
});

describe('what is loaded', () => {
  test('onnxruntime-node is imported in one file, and only when a runtime is created', () => {
    const users = imports.filter(({ target, kind }) => target === 'onnxruntime-node' && kind !== 'type');
    expect(users.map(({ file, kind }) => ({ file, kind }))).toEqual([{ file: ortFile, kind: 'dynamic' }]);
  });

  test("only the engine's process reaches the ONNX Runtime executor", () => {
    const reaching = sources.filter(
      (file) => file !== ortFile && findPath(imports, file, (target) => target === ortFile),
    );
    expect(reaching).toEqual(ortUsers);
    const starters = imports.filter(({ target, kind }) => threads.includes(target) && kind !== 'type');
    expect(starters.map((item) => report(item, 'the engine runs in a process of its own'))).toEqual([]);
  });

  test.each(['engines', 'server', 'local-backend.ts', 'nn', 'infer', 'train', 'graph', 'hub', 'formats'])(
    'the public entry does not load %s before it is needed',
    (layer) => {
      const path = findPath(imports, 'src/index.ts', (target) => isFile(target) && layerOf(target) === layer);
      expect(path).toEqual(layer === 'local-backend.ts' ? ['src/index.ts', 'src/local-backend.ts'] : null);
    },
  );

  test('the public entry loads no package but those of the sdk and the rewards', () => {
    const reached = Object.keys(packages).filter((name) =>
      findPath(imports, 'src/index.ts', (target) => target === name),
    );
    expect(reached.sort()).toEqual([
      'cli-progress',
      'eventsource-parser',
      'fastest-levenshtein',
      'openai',
      'p-limit',
      'zod',
    ]);
  });
});

describe('the rules themselves', () => {
  const check = (file: string, text: string): string[] => {
    const list = readImports(file, text);
    return [...layerViolations(list), ...packageViolations(list)];
  };

  test('name file, import and rule', () => {
    expect(check('src/nn/a.ts', "\nimport { b } from '../train/b.ts';")).toEqual([
      'src/nn/a.ts:2 imports src/train/b.ts: nn may import nn, graph, formats, core',
    ]);
    expect(check('src/sdk/a.ts', "const b = await import('../server/index.ts');")).toEqual([
      'src/sdk/a.ts:1 imports src/server/index.ts: sdk may import sdk, wire, core',
    ]);
    expect(check('src/server/a.ts', "import type { B } from '../sdk/b.ts';")).toHaveLength(1);
    expect(check('src/server/a.ts', "export { b } from '../sdk/b.ts';")).toHaveLength(1);
    expect(check('src/server/a.ts', "type B = typeof import('../sdk/b.ts');")).toHaveLength(1);
    expect(check('src/engines/a.ts', "import '../../test/b.ts';")).toHaveLength(1);
    expect(check('src/server/a.ts', "import OpenAI from 'openai/resources';")).toEqual([
      'src/server/a.ts:1 imports openai: only sdk, rewards, mcp, environments may import this package',
    ]);
    expect(check('src/core/a.ts', "import { join } from 'node:path';")).toHaveLength(1);
    expect(check('src/utils/a.ts', "import { b } from '../core/b.ts';")).toEqual([
      "src/utils/a.ts: 'utils' must be a layer in test/layers.test.ts",
    ]);
  });

  test('see a cycle, but not one of types', () => {
    const pair = (kind: string): Import[] => [
      ...readImports('src/nn/a.ts', `import ${kind}{ b } from './b.ts';`),
      ...readImports('src/nn/b.ts', "import { a } from './a.ts';"),
    ];
    expect(findCycles(pair(''))).toEqual(['src/nn/a.ts → src/nn/b.ts → src/nn/a.ts']);
    expect(findCycles(pair('type '))).toEqual([]);
  });
});

describe('sizes', () => {
  /** Largest number of lines of a file; tables have one row per op. */
  const limit = (file: string): number => (/^src\/graph\/(ops|op-cases)\.ts$/.test(file) ? 600 : 400);
  /** Files that may be longer, each with its reason. */
  const exceptions: Readonly<Record<string, string>> = {};

  test.each(['src', 'examples', 'bench', 'test'])('no file in %s is too long', (folder) => {
    const long = listFiles(folder).flatMap((file) => {
      const lines = readFileSync(join(root, file), 'utf8').split('\n').length - 1;
      return lines > limit(file) && !(file in exceptions)
        ? [`${file}: at most ${limit(file)} lines, got ${lines}`]
        : [];
    });
    expect(long).toEqual([]);
  });
});
