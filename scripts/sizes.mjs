/** Size report: `node scripts/sizes.mjs`. Lines of source by folder of src/, tests apart, and the largest files. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const source = join(root, 'src');
const largestShown = 10;

const files = readdirSync(source, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
  .map((entry) => {
    const path = join(entry.parentPath, entry.name);
    const lines = readFileSync(path, 'utf8').split('\n').length - 1;
    return { path, lines, isTest: entry.name.endsWith('.test.ts') };
  });

const folders = new Map();
for (const { path, lines, isTest } of files) {
  const name = relative(root, dirname(path)).split(sep).slice(0, 3).join('/');
  const row = folders.get(name) ?? { files: 0, lines: 0, testLines: 0 };
  if (isTest) row.testLines += lines;
  else {
    row.files++;
    row.lines += lines;
  }
  folders.set(name, row);
}

const print = (name, row) =>
  console.log(`${name.padEnd(24)}${[row.files, row.lines, row.testLines].map((n) => String(n).padStart(8)).join('')}`);
console.log(`${'folder'.padEnd(24)}${['files', 'lines', 'tests'].map((title) => title.padStart(8)).join('')}`);
for (const [name, row] of [...folders].sort(([a], [b]) => (a < b ? -1 : 1))) print(name, row);
const sum = (key) => [...folders.values()].reduce((total, row) => total + row[key], 0);
print('total', { files: sum('files'), lines: sum('lines'), testLines: sum('testLines') });

console.log('\nlargest files');
const sources = files.filter((file) => !file.isTest).sort((a, b) => b.lines - a.lines);
for (const { path, lines } of sources.slice(0, largestShown)) {
  console.log(`${String(lines).padStart(6)}  ${relative(root, path).split(sep).join('/')}`);
}
