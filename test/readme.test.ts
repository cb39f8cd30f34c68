/** The pages say what is so: commands, links, files and code. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import ts from 'typescript';
import { describe, expect, test } from 'vitest';
import { root } from './source-imports.ts';

const docs = readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md'));
const pages = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', ...docs.map((name) => `docs/${name}`)];
const read = (path: string): string => readFileSync(join(root, path), 'utf8');
const countLines = (path: string): number => read(path).split('\n').length - 1;

/** The content of every fenced block of a language. */
function codeBlocks(page: string, language: string): string[] {
  return [...read(page).matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'gms'))].map(
    (match) => match[1] ?? '',
  );
}

test('the pages are short', () => {
  expect(countLines('README.md')).toBeLessThanOrEqual(200);
  expect(countLines('CONTRIBUTING.md')).toBeLessThanOrEqual(130);
});

describe.each(pages)('%s', (page) => {
  test('names only commands that exist', () => {
    const { scripts, bin } = JSON.parse(read('package.json'));
    const scriptNames = [...read(page).matchAll(/npm run ([\w:-]+)/g)].map((match) => match[1] ?? '');
    if (read(page).includes('npm test')) scriptNames.push('test');
    expect(scriptNames.filter((name) => !(name in scripts))).toEqual([]);
    const artCommands = [...read(page).matchAll(/`art (\w+)/g)].map((match) => match[1]);
    expect(bin).toHaveProperty('art');
    expect(artCommands.filter((name) => !existsSync(join(root, `src/cli/${name}.ts`)))).toEqual([]);
  });

  test('links only to files that exist', () => {
    const links = [...read(page).matchAll(/\]\(([^)#]+)(#[^)]*)?\)/g)].map((match) => match[1] ?? '');
    const relative = links.filter((link) => !/^[a-z]+:/.test(link));
    expect(relative.filter((link) => !existsSync(join(root, dirname(page), link)))).toEqual([]);
  });

  test('names only source files that exist', () => {
    const paths = [...read(page).matchAll(/`((?:src|test|examples|bench|scripts|docs)\/[\w./-]+)`/g)].map(
      (match) => match[1] ?? '',
    );
    expect(paths.filter((path) => !existsSync(join(root, path)))).toEqual([]);
  });
});

test('the file tree holds what is there, and every folder of src', () => {
  const [tree = ''] = codeBlocks('README.md', 'text');
  const entries = tree
    .trim()
    .split('\n')
    .map((line) => /^(\S+) {2,}\S/.exec(line)?.[1] ?? line);
  expect(entries.filter((entry) => !existsSync(join(root, entry)))).toEqual([]);
  const folders = ts.sys.getDirectories(join(root, 'src')).map((name) => `src/${name}/`);
  expect(folders.filter((folder) => !entries.includes(folder))).toEqual([]);
});

test('the code compiles against the built package', () => {
  const blocks = pages.flatMap((page) => codeBlocks(page, 'ts'));
  expect(blocks.length).toBeGreaterThan(0);
  const config = ts.parseJsonConfigFileContent(JSON.parse(read('tsconfig.json')), ts.sys, root);
  const sources = new Map(blocks.map((code, index) => [join(root, `readme-${index}.ts`), code]));
  const host = ts.createCompilerHost(config.options);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (path) => sources.has(path) || fileExists(path);
  host.readFile = (path) => sources.get(path) ?? readFile(path);
  host.getSourceFile = (path, languageVersion, ...rest) => {
    const code = sources.get(path);
    if (code === undefined) return getSourceFile(path, languageVersion, ...rest);
    return ts.createSourceFile(path, code, languageVersion);
  };
  const program = ts.createProgram([...sources.keys()], config.options, host);
  const errors = ts
    .getPreEmitDiagnostics(program)
    .map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, '\n'));
  expect(errors).toEqual([]);
});
