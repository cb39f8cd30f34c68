/** Pain 54, and 22 to 30: dependencies for one GPU stack and one system, which broke with every release. Here none needs a GPU, and each is pinned. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from '../source-imports.ts';

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));

test('what is installed with the package names no GPU, no one system, and no range of versions', () => {
  const shipped = Object.entries<{ dev?: boolean; os?: string[] }>(lock.packages).filter(
    ([path, { dev }]) => path !== '' && dev !== true,
  );
  expect(shipped.length).toBeGreaterThan(20);
  expect(shipped.filter(([path]) => /cuda|rocm|tensorrt|triton|vllm|torch/i.test(path))).toEqual([]);
  const systems = shipped.filter(([, { os }]) => os !== undefined).flatMap(([, { os = [] }]) => os);
  // The one package with binaries has them for all three systems.
  for (const system of new Set(systems)) expect(['darwin', 'linux', 'win32']).toContain(system);
  const versions = Object.values<string>({ ...manifest.dependencies, ...manifest.optionalDependencies });
  expect(versions.filter((version) => !/^\d+\.\d+\.\d+$/.test(version))).toEqual([]);
  expect(Object.keys(manifest.optionalDependencies)).toEqual(['onnxruntime-node']);
});
