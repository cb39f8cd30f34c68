/** `art trajectories`: what the runs of a project rolled out, as one Parquet file. Layer 6. Reads the run folders; no server is needed. */
import { Command, InvalidArgumentError } from 'commander';
import { loadTrajectories, writeTrajectories } from '../parquet/index.ts';

interface Options {
  readonly model: readonly string[];
  readonly split: readonly string[];
  readonly from?: number;
  readonly to?: number;
  readonly path: string;
  readonly out: string;
}

/** The action throws DataError if the project is not there, StorageError if the file cannot be written. */
export function createTrajectoriesCommand(): Command {
  return new Command('trajectories')
    .description('Write the trajectories of a project as Parquet, for DuckDB, Polars or pandas.')
    .argument('<project>', 'project whose runs are read')
    .option('--model <name>', 'only this model; may be repeated', collect, [])
    .option('--split <name>', 'only this split; may be repeated', collect, [])
    .option('--from <step>', 'first step', parseStep)
    .option('--to <step>', 'last step', parseStep)
    .option('--path <directory>', 'folder of all runs', '.art')
    .requiredOption('--out <file>', 'file to write')
    .action(async (project: string, { model, split, from, to, path, out }: Options) => {
      const rows = await loadTrajectories({
        project,
        path,
        ...(model.length > 0 && { models: model }),
        ...(split.length > 0 && { splits: split }),
        ...(from !== undefined && { from }),
        ...(to !== undefined && { to }),
      });
      await writeTrajectories(out, rows);
      const trajectories = rows.filter((row) => row.kind === 'trajectory').length;
      console.log(`${out}: ${trajectories} trajectories of ${rows.length - trajectories} groups`);
    });
}

function collect(value: string, before: readonly string[]): string[] {
  return [...before, value];
}

function parseStep(text: string): number {
  if (/^\d+$/.test(text)) return Number(text);
  throw new InvalidArgumentError('must be a whole number from 0 on');
}
