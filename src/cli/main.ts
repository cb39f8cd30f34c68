#!/usr/bin/env node
/** The command `art`. Layer 6. One file a command; this one names them and turns typed errors into one line and exit code 1. */
import { Command } from 'commander';
import { ArtError } from '../core/errors.ts';
import { readPackageVersion } from '../server/store/run-folder.ts';
import { createAuditCommand } from './audit.ts';
import { createExportCommand } from './export.ts';
import { createHistoryCommand } from './history.ts';
import { createKeysCommand } from './keys.ts';
import { createPurgeCommand } from './purge.ts';
import { createServeCommand } from './serve.ts';
import { createTrajectoriesCommand } from './trajectories.ts';

const program: Command = new Command('art')
  .description('Trains agents by reinforcement learning: serves a model, samples from it, trains it.')
  .version(await readPackageVersion())
  .addCommand(createServeCommand())
  .addCommand(createHistoryCommand())
  .addCommand(createExportCommand())
  .addCommand(createTrajectoriesCommand())
  .addCommand(createKeysCommand())
  .addCommand(createAuditCommand())
  .addCommand(createPurgeCommand());

try {
  await program.parseAsync();
} catch (error) {
  if (!(error instanceof ArtError)) throw error;
  console.error(`art: ${error.message}`);
  process.exitCode = 1;
}
