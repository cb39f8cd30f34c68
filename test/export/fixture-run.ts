/** The fixtures of test/fixtures/export as a run folder, so that they are exported as a user's policy is. */
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type ExportOptions, type ExportResult, exportPolicy } from '../../src/export/index.ts';
import { root } from '../source-imports.ts';
import { writeRunFolder } from './run-folder.ts';

export const fixtures = join(root, 'test', 'fixtures', 'export');

export interface FixtureRun {
  readonly folder: string;
  /** Exports step 1 to `<folder>/<out>`. */
  readonly exportTo: (
    out: string,
    options: Partial<ExportOptions> & Pick<ExportOptions, 'format'>,
  ) => Promise<ExportResult>;
  readonly remove: () => Promise<void>;
}

export async function createFixtureRun(): Promise<FixtureRun> {
  const folder = await mkdtemp(join(tmpdir(), 'art-export-'));
  const runs = join(folder, 'runs');
  const fill = (_step: number, directory: string): Promise<void> =>
    cp(join(fixtures, 'adapter'), directory, { recursive: true });
  await writeRunFolder({ root: runs, base: join(fixtures, 'base'), rank: 4, alpha: 6, steps: [1], fill });
  return {
    folder,
    exportTo: (out, options) => exportPolicy({ path: runs, name: 'agent', out: join(folder, out), ...options }),
    remove: () => rm(folder, { recursive: true }),
  };
}

export function readFixture(name: string): Promise<Buffer> {
  return readFile(join(fixtures, name));
}
