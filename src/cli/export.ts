/** `art export`: a trained policy as files for other programs. Layer 6. Reads the run folder; no server is needed. */
import { Command, InvalidArgumentError, Option } from 'commander';
import { type ExportOptions, exportDtypes, exportFormats, exportPolicy } from '../export/export-policy.ts';
import { formatBytes } from '../hub/progress-bar.ts';

interface CommandOptions extends Omit<ExportOptions, 'name' | 'onProgress' | 'signal'> {
  readonly project: string;
  readonly path: string;
}

/** Prints what was written, and on standard error what other programs will do differently. */
export function createExportCommand(): Command {
  return new Command('export')
    .description('Write a trained policy for other programs: PEFT, transformers, llama.cpp, Ollama, LM Studio.')
    .argument('<model>', 'name of the model')
    .requiredOption('--out <path>', 'what to write: a folder (peft, safetensors) or a file (gguf-lora, gguf)')
    .addOption(
      new Option('--format <format>', 'adapter alone (peft, gguf-lora) or merged into the base (safetensors, gguf)')
        .choices(exportFormats)
        .makeOptionMandatory(),
    )
    .option('--project <project>', 'project the run belongs to', 'default')
    .option('--path <directory>', 'folder of all runs', '.art')
    .option('--step <step>', 'step of the policy', parseStep, 'newest')
    .addOption(new Option('--dtype <dtype>', "type of matrices (default: as the base's)").choices(exportDtypes))
    .option('--base <path>', 'base model, if it has moved since')
    .option('--force', 'replace an earlier export')
    .action(runExport);
}

async function runExport(name: string, options: CommandOptions): Promise<void> {
  const stop = new AbortController();
  const onSignal = (): void => stop.abort();
  process.once('SIGINT', onSignal);
  process.once('SIGTERM', onSignal);
  const isTerminal = process.stderr.isTTY === true;
  try {
    const result = await exportPolicy({
      ...options,
      name,
      signal: stop.signal,
      onProgress: (done, total) => {
        if (isTerminal) process.stderr.write(`\r${Math.floor((100 * done) / total)} % of ${formatBytes(total)}`);
      },
    });
    if (isTerminal) process.stderr.write('\r\x1b[K');
    for (const warning of result.warnings) console.warn(`art: ${warning}`);
    const dtype = result.dtype === null ? '' : `, ${result.dtype}`;
    console.log(`${name}@${result.step} → ${result.path} (${result.format}${dtype}, ${formatBytes(result.bytes)})`);
  } finally {
    process.off('SIGINT', onSignal);
    process.off('SIGTERM', onSignal);
  }
}

function parseStep(text: string): number | 'newest' {
  if (text === 'newest') return text;
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('must be a whole number or newest.');
  return Number(text);
}
