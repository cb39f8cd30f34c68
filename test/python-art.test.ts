/** docs/python-art.md names what is there: exports of the entries, members of classes, options. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { expect, test } from 'vitest';
import { root } from './source-imports.ts';

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

/** Names of the second column of every table. */
function readNames(): string[] {
  const rows = readFileSync(join(root, 'docs', 'python-art.md'), 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('| '));
  const cells = rows.map((row) => row.split(/(?<!\\)\|/)[2] ?? '');
  return [...new Set(cells.flatMap((cell) => [...cell.matchAll(/`([\w.]+)`/g)].map((match) => match[1] ?? '')))];
}

test('every name of the page is exported, or a member of what is', () => {
  const entries = Object.entries<{ types?: string }>(manifest.exports).flatMap(([, { types }]) =>
    types === undefined ? [] : [join(root, types)],
  );
  const program = ts.createProgram(entries, {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
  });
  const checker = program.getTypeChecker();
  const exported = new Map<string, ts.Symbol>();
  for (const entry of entries) {
    const module = checker.getSymbolAtLocation(program.getSourceFile(entry)!);
    for (const symbol of checker.getExportsOfModule(module!)) exported.set(symbol.name, symbol);
  }
  const isThere = (name: string): boolean => {
    const [owner = '', member] = name.split('.');
    const symbol = exported.get(owner);
    if (symbol === undefined || member === undefined) return symbol !== undefined;
    const target = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    return checker.getDeclaredTypeOfSymbol(target).getProperty(member) !== undefined;
  };
  const names = readNames();
  expect(names.length).toBeGreaterThan(60);
  expect(names.filter((name) => !isThere(name))).toEqual([]);
});
