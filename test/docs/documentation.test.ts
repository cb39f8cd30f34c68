/** Every example of README and docs/ runs, against a tiny model with random weights, as the page shows it. */
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { LocalBackend, TrainableModel } from '../../src/index.ts';
import { root } from '../source-imports.ts';
import { type Example, pages, readExamples, serverVariable, toProgram } from './documentation.ts';

const folder = mkdtempSync(join(tmpdir(), 'art-docs-'));
const modelDirectory = join(folder, 'my-model');
const backend = new LocalBackend({ path: join(folder, 'server'), port: 0 });
let url = '';

beforeAll(async () => {
  const sizes = { layers: 2, width: 32, heads: 2, kvHeads: 1, headSize: 16, ffWidth: 48, maxPositions: 4096 };
  await writeStarterModel({
    seed: 1,
    directory: modelDirectory,
    corpus: ['yes no 0 1 2 3 4 5 6 7 8 9'],
    vocabSize: 290,
    ...sizes,
  });
  for (const name of ['agent', 'agent-001']) {
    const model = new TrainableModel({ name, project: 'docs', baseModel: modelDirectory });
    await model.register(backend);
    url = new URL(model.openaiClient().baseURL).origin;
  }
});

afterAll(async () => {
  await backend.close();
  rmSync(folder, { recursive: true });
});

/** A project as a reader has it: the package and what is installed beside it, and a model. */
function createProject(page: string): string {
  const project = join(folder, page.replaceAll(/\W/g, '-'));
  const modules = join(project, 'node_modules');
  mkdirSync(modules, { recursive: true });
  mkdirSync(join(project, 'models'));
  symlinkSync(modelDirectory, join(project, 'models', 'my-model'), 'junction');
  symlinkSync(root, join(modules, 'agent-reinforcement-trainer'), 'junction');
  for (const name of readdirSync(join(root, 'node_modules'))) {
    if (!name.startsWith('.')) symlinkSync(join(root, 'node_modules', name), join(modules, name), 'junction');
  }
  return project;
}

/** Pages whose examples take a run that is there already. */
const prepare: Readonly<Record<string, (project: string) => Promise<void>>> = {
  'docs/export.md': async (project) => {
    await using local = new LocalBackend({ path: join(project, '.art') });
    await new TrainableModel({ name: 'agent-001', project: 'sums', baseModel: modelDirectory }).register(local);
  },
};

interface Outcome {
  readonly code: number | null;
  readonly output: string;
}

function runExample(example: Example, project: string): Promise<Outcome> {
  const isShell = example.language === 'sh';
  const file = join(project, `example.${isShell ? 'sh' : 'mjs'}`);
  writeFileSync(file, toProgram(example, url));
  const env = { ...process.env, [serverVariable]: url };
  const child = spawn(isShell ? 'bash' : process.execPath, [file], { cwd: project, env, timeout: 110_000 });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk) => {
      output += String(chunk);
    });
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, output }));
  });
}

describe.each(pages.filter((page) => readExamples(page).length > 0))('%s', (page) => {
  let project = '';
  beforeAll(async () => {
    project = createProject(page);
    await prepare[page]?.(project);
  });
  for (const example of readExamples(page)) {
    const title = `example at ${example.place}`;
    if (example.skipped !== null) test.skip(`${title} (not run: ${example.skipped})`);
    else {
      test(title, { timeout: 120_000 }, async () => {
        const { code, output } = await runExample(example, project);
        expect(code, output).toBe(0);
        expect(output).not.toContain('event: error');
      });
    }
  }
});

test('the examples are found', () => {
  expect(pages.flatMap((page) => readExamples(page)).length).toBeGreaterThan(10);
});
