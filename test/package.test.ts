/** The manifest: exact versions, no install script that runs, entries that exist. The build comes before the tests. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from './source-imports.ts';

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));

test('every dependency is pinned to one version, the one in the lock file', () => {
  const pins = Object.entries({
    ...manifest.dependencies,
    ...manifest.optionalDependencies,
    ...manifest.devDependencies,
  });
  const loose = pins.filter(([name, version]) => {
    const locked = lock.packages[`node_modules/${name}`]?.version;
    return !/^\d+\.\d+\.\d+(-[\w.]+)?$/.test(String(version)) || locked !== version;
  });
  expect(loose).toEqual([]);
});

test('no dependency runs a script when it is installed', () => {
  const withScript = Object.entries<{ hasInstallScript?: boolean }>(lock.packages)
    .filter(([, entry]) => entry.hasInstallScript === true)
    .map(([path]) => path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length));
  const undecided = withScript.filter((name) => !(name in manifest.allowScripts));
  expect(undecided).toEqual([]);
  expect(Object.values(manifest.allowScripts).every((isAllowed) => isAllowed === false)).toBe(true);
  expect(readFileSync(join(root, '.npmrc'), 'utf8').split('\n')).toContain('ignore-scripts=true');
});

test('every entry and command of the package exists once it is built', () => {
  const targets = [
    ...Object.values<string | Record<string, string>>(manifest.exports).flatMap((entry) =>
      typeof entry === 'string' ? [entry] : Object.values(entry),
    ),
    ...Object.values<string>(manifest.bin),
  ];
  expect(targets.length).toBeGreaterThan(4);
  expect(targets.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});

test('the package imports itself by its public names', async () => {
  const names = Object.keys(manifest.exports).filter((entry) => !entry.endsWith('.json'));
  for (const entry of names) {
    const specifier = join(manifest.name, entry).replaceAll('\\', '/');
    const module = await import(specifier);
    expect(Object.keys(module).length, specifier).toBeGreaterThan(0);
  }
});

test('npm run sbom lists every package that is installed with this one, and gives the same bytes again', () => {
  const folder = mkdtempSync(join(tmpdir(), 'art-sbom-'));
  try {
    const [first, second] = ['a.json', 'b.json'].map((name) => {
      const target = join(folder, name);
      execFileSync(process.execPath, [join(root, 'scripts', 'sbom.mjs'), target]);
      return readFileSync(target, 'utf8');
    });
    expect(second).toBe(first);
    const { bomFormat, metadata, components } = JSON.parse(first ?? '');
    expect({ bomFormat, name: metadata.component.name }).toEqual({ bomFormat: 'CycloneDX', name: manifest.name });
    const shipped = Object.entries<{ dev?: boolean; version: string }>(lock.packages)
      .filter(([path, { dev }]) => path !== '' && dev !== true)
      .map(([path, { version }]) => `${path.slice(path.lastIndexOf('node_modules/') + 13)}@${version}`);
    const listed = components.map((component: Record<string, string>) => component['bom-ref']);
    expect([...listed].sort()).toEqual([...new Set(shipped)].sort());
  } finally {
    rmSync(folder, { recursive: true });
  }
});
