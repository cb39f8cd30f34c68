/** What the source files import, read from their syntax trees; for the tests of the layers. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

export const root: string = fileURLToPath(new URL('..', import.meta.url));

/**
 * `static`: loaded with the file; `dynamic`: loaded when the code gets there; `type`: erased by the compiler.
 * `target` is the path of a file of this repository, or the name of a package or built-in module.
 */
export interface Import {
  readonly file: string;
  readonly target: string;
  readonly kind: 'static' | 'dynamic' | 'type';
  readonly line: number;
}

/** Paths from the root of the repository with forward slashes, sorted. */
export function listFiles(folder: string, extension = '.ts'): string[] {
  return readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(extension))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)).split(sep).join('/'))
    .sort();
}

export function isTest(file: string): boolean {
  return file.endsWith('.test.ts');
}

export function readImports(file: string, text: string = readFileSync(join(root, file), 'utf8')): Import[] {
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true);
  const found: Import[] = [];
  const add = (specifier: ts.Node | undefined, kind: Import['kind']): void => {
    if (specifier === undefined || !ts.isStringLiteralLike(specifier)) return;
    const name = specifier.text;
    const target = name.startsWith('.') ? posix.join(dirname(file), name) : packageName(name);
    found.push({ file, target, kind, line: source.getLineAndCharacterOfPosition(specifier.pos).line + 1 });
  };
  const visit = (node: ts.Node): void => {
    if (ts.isImportDeclaration(node)) add(node.moduleSpecifier, isErased(node.importClause) ? 'type' : 'static');
    else if (ts.isExportDeclaration(node)) add(node.moduleSpecifier, node.isTypeOnly ? 'type' : 'static');
    else if (ts.isImportTypeNode(node))
      add(ts.isLiteralTypeNode(node.argument) ? node.argument.literal : undefined, 'type');
    else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
      add(node.arguments[0], 'dynamic');
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return found;
}

/** Under `verbatimModuleSyntax` a whole `import type` is erased; `import { type A }` still loads the module. */
function isErased(clause: ts.ImportClause | undefined): boolean {
  return clause?.phaseModifier === ts.SyntaxKind.TypeKeyword;
}

function packageName(specifier: string): string {
  if (specifier.startsWith('node:')) return specifier;
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}

/** The shortest way from a file to one that `isGoal` holds for along static imports, or null. */
export function findPath(
  imports: readonly Import[],
  start: string,
  isGoal: (target: string) => boolean,
): string[] | null {
  const cameFrom = new Map<string, string | null>([[start, null]]);
  const queue = [start];
  for (let file = queue.shift(); file !== undefined; file = queue.shift()) {
    if (file !== start && isGoal(file)) {
      const path: string[] = [];
      for (let step: string | null | undefined = file; step != null; step = cameFrom.get(step)) path.unshift(step);
      return path;
    }
    for (const { file: from, target, kind } of imports) {
      if (from !== file || kind !== 'static' || cameFrom.has(target)) continue;
      cameFrom.set(target, file);
      queue.push(target);
    }
  }
  return null;
}
