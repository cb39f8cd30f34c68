/** Peak memory of LoRA training of the largest model at 4,096 tokens. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { StageContext } from './stages.ts';

const limitGb = 4;
const tokens = 4096;
const sequenceTokens = 256;

export async function benchMemory({ report, options: { threads, isQuick, models } }: StageContext): Promise<void> {
  const key = models.at(-1)!;
  const sequences = isQuick ? 2 : tokens / sequenceTokens;
  const name = `peak memory, LoRA training of ${key} at ${sequences * sequenceTokens} tokens`;
  const file = fileURLToPath(
    new URL(import.meta.url.endsWith('.ts') ? 'memory-child.ts' : 'memory-child.js', import.meta.url),
  );
  const args = [file, key, sequences, sequences * sequenceTokens, threads].map(String);
  const { stdout } = await promisify(execFile)(process.execPath, args);
  const gb = Number(stdout) / 1024;
  const goal = key === '135M' ? { goal: 1 } : {};
  report.add({ name, value: gb, unit: 'GB', peer: `limit of ${limitGb} GB`, ratio: limitGb / gb, ...goal });
}
