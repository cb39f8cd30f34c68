/**
 * `npm run sbom [-- FILE]`: everything that is installed with this package, as CycloneDX 1.5 JSON, from package-lock.json alone.
 * The same lock file gives the same bytes: what npm takes from the clock, from chance and from the folder's name is left out or replaced.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const target = resolve(process.argv[2] ?? join(root, 'sbom.cdx.json'));
const args = ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only'];
// npm is JavaScript; its path is in the environment of every npm script, so that no shell is needed on any system.
const npm = process.env.npm_execpath;
const run = npm === undefined ? ['npm', args] : [process.execPath, [npm, ...args]];
const { status, stdout, stderr } = spawnSync(run[0], run[1], { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 26 });
if (status !== 0) {
  console.error(`sbom: npm sbom must succeed, got exit code ${status}: ${stderr}`);
  process.exit(1);
}
const bom = JSON.parse(stdout);
const { name, version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
delete bom.serialNumber;
delete bom.metadata.timestamp;
Object.assign(bom.metadata.component, { name, version });
// Not by npm's --omit dev: it also drops packages that development packages have as peers.
const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
const installed = new Set(
  Object.entries(packages)
    .filter(([path, entry]) => path !== '' && entry.dev !== true)
    .map(([path, entry]) => `${entry.name ?? path.slice(path.lastIndexOf('node_modules/') + 13)}@${entry.version}`),
);
bom.components = bom.components.filter((component) => installed.has(component['bom-ref']));
bom.dependencies = bom.dependencies
  .filter(({ ref }) => installed.has(ref) || ref === `${name}@${version}`)
  .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((other) => installed.has(other)) }));
writeFileSync(target, `${JSON.stringify(bom, null, 2)}\n`);
console.log(`${target}: ${bom.components.length} packages of ${name} ${version}`);
