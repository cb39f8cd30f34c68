/** The examples of README and docs/ as programs: what a page shows, and what it is run with. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { root } from '../source-imports.ts';

export interface Example {
  /** As in `docs/api.md:12`. */
  readonly place: string;
  readonly language: 'ts' | 'sh';
  readonly code: string;
  /** Why it is compiled alone; null if it is run. */
  readonly skipped: string | null;
}

export const pages: readonly string[] = [
  'README.md',
  ...readdirSync(join(root, 'docs'))
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
];

/** `ts` blocks, and shell blocks that call a server. */
export function readExamples(page: string): Example[] {
  const text = readFileSync(join(root, page), 'utf8');
  const blocks = [...text.matchAll(/^```(ts|sh|bash)\n(.*?)^```$/gms)];
  return blocks.flatMap(({ 1: language, 2: code = '', index }) => {
    if (language !== 'ts' && !code.includes('curl ')) return [];
    const line = text.slice(0, index).split('\n').length;
    const skipped = /^(?:\/\/|#) not run in CI: (.+)$/m.exec(code)?.[1] ?? null;
    return [{ place: `${page}:${line}`, language: language === 'ts' ? 'ts' : 'sh', code, skipped }];
  });
}

/** What node or bash runs: the block's own text, with the server at `url` in place of the one it names. */
export function toProgram({ language, code }: Example, url: string): string {
  const own = code.replaceAll(/(?:http:\/\/)?(?:127\.0\.0\.1|localhost):8000/g, (address) =>
    address.startsWith('http') ? url : url.replace('http://', ''),
  );
  if (language === 'sh') {
    const calls = own.split('\n').filter((line) => !line.startsWith('art serve '));
    return `set -eu\nURL=${url}\n${calls.join('\n').replaceAll('curl ', 'curl --silent --show-error --fail-with-body --max-time 50 ')}`;
  }
  // A model of the hub would be downloaded.
  const local = own.replaceAll(/'[\w-]+\/[\w.-]*SmolLM[\w.-]*'/g, "'./models/my-model'");
  const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
  return ts.transpileModule(local, { compilerOptions }).outputText;
}

/** Programs read the address of the server here. */
export const serverVariable = 'ART_URL';
