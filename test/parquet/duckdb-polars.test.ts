/** Trajectories as Parquet in DuckDB and Polars. Runs where ART_PYTHON names a Python that has both. */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { Trajectory, TrajectoryGroup } from '../../src/index.ts';
import { toRows, writeTrajectories } from '../../src/parquet/index.ts';
import { root } from '../source-imports.ts';

const python = process.env.ART_PYTHON;
const hasReaders = python !== undefined && spawnSync(python, ['-c', 'import duckdb, polars']).status === 0;
const title = 'DuckDB and Polars read the same numbers and texts';

test.skipIf(!hasReaders)(
  hasReaders ? title : `${title} (skipped: ART_PYTHON names no Python that has duckdb and polars)`,
  async () => {
    const folder = mkdtempSync(join(tmpdir(), 'art-readers-'));
    try {
      const groups = [0, 1].map(
        (scenario) =>
          new TrajectoryGroup(
            [1, 2, 3].map(
              (moves) =>
                new Trajectory({
                  messagesAndChoices: [{ role: 'user', content: `Zürich 🎲 "${scenario}"\n` }],
                  reward: moves / 4 - scenario,
                  metrics: { moves, win: moves > 1 },
                  metadata: { opponent: 'random' },
                }),
            ),
            { exceptions: [{ type: 'Error', message: 'x' }] },
          ),
      );
      const file = join(folder, 'trajectories.parquet');
      await writeTrajectories(file, toRows(groups, { model: 'agent', split: 'val', step: 7 }));
      const script = join(root, 'test', 'parquet', 'readers.py');
      const found = JSON.parse(execFileSync(python!, [script, file], { encoding: 'utf8' }));
      const expected = [0, 1].map((scenario) => [
        scenario,
        3,
        0.5 - scenario,
        2,
        2,
        'random',
        `Zürich 🎲 "${scenario}"\n`,
        1,
      ]);
      expect(found).toEqual({ duckdb: expected, polars: expected });
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);
