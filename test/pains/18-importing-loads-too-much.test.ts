/** ART PR #765: training on exact ids loaded Transformers and W&B. Here importing the SDK loads no engine, no server and no framework. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { root } from '../source-imports.ts';

/** Tells every module that is loaded. */
const loader = 'export const load = (url, context, next) => (process._rawDebug(url), next(url, context));';

test('the SDK loads itself, the openai client and a few small packages', () => {
  const entry = pathToFileURL(join(root, 'dist', 'src', 'index.js')).href;
  const program = `import { register } from 'node:module';
    register('data:text/javascript,${encodeURIComponent(loader)}');
    await import('${entry}');`;
  const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', program], {
    encoding: 'utf8',
  });
  expect(status, stderr).toBe(0);
  const urls = stderr.trim().split('\n');
  const packages = urls.flatMap((url) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(url)?.[1] ?? []);
  expect(packages).toContain('openai');
  const heavy =
    /onnxruntime|^@langchain|^ai$|^@ai-sdk|^@mastra|^hono|^@huggingface|^@opentelemetry|^@modelcontextprotocol/;
  expect(packages.filter((name) => heavy.test(name))).toEqual([]);
  const own = urls.flatMap((url) => /\/dist\/src\/([\w-]+)\//.exec(url)?.[1] ?? []);
  expect(own).toContain('sdk');
  const layers = ['server', 'engines', 'graph', 'infer', 'train', 'nn', 'formats', 'hub', 'integrations', 'mcp'];
  expect(own.filter((layer) => layers.includes(layer))).toEqual([]);
});
