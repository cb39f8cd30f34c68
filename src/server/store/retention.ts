/** `retention.json` of a run: which checkpoints are kept, and the deletion of the others after each step. Layer 5. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { ConfigError } from '../../core/errors.ts';
import { formatJson, isPresent, readJsonFile, writeFileAtomic } from '../../formats/atomic-files.ts';
import { type Retention, retention } from '../../wire/checkpoints.ts';
import type { TrainingRun } from '../training/training-run.ts';
import type { MetricRow } from './metric-files.ts';

const keepAll: Retention = { keep_last: null, keep_best: null };

/** Throws ConfigError if the file is damaged: nothing is deleted by a rule that cannot be read. */
export async function readRetention(runDirectory: string): Promise<Retention> {
  const path = pathOf(runDirectory);
  if (!(await isPresent(path))) return keepAll;
  const parsed = retention.safeParse(await readJsonFile(path));
  if (!parsed.success) throw new ConfigError(`${path}: ${z.prettifyError(parsed.error)}`);
  return parsed.data;
}

export async function writeRetention(runDirectory: string, rule: Retention): Promise<void> {
  await writeFileAtomic(pathOf(runDirectory), [formatJson(rule)]);
}

/** Steps that no rule keeps. The newest step is always kept. */
export function stepsToDelete(steps: readonly number[], history: readonly MetricRow[], rule: Retention): number[] {
  const { keep_last: last, keep_best: best } = rule;
  if (last === null && best === null) return [];
  const sorted = [...steps].sort((a, b) => a - b);
  const kept = new Set(sorted.slice(-(last ?? 1)));
  if (best !== null) for (const step of bestSteps(sorted, history, best)) kept.add(step);
  return sorted.filter((step) => !kept.has(step));
}

/** Of two steps with the same value the later is the better one. */
function bestSteps(
  steps: readonly number[],
  history: readonly MetricRow[],
  { metric, split, count, mode }: NonNullable<Retention['keep_best']>,
): number[] {
  const values = new Map<number, number>();
  for (const row of history) {
    const value = row[metric];
    if (row.split === split && typeof value === 'number') values.set(Number(row.step), value);
  }
  const sign = mode === 'max' ? -1 : 1;
  return steps
    .filter((step) => values.has(step))
    .sort((a, b) => sign * ((values.get(a) as number) - (values.get(b) as number)) || b - a)
    .slice(0, count);
}

/** Deletes, for good, what the run's rule does not keep; returns the steps. */
export async function applyRetention(run: TrainingRun): Promise<readonly number[]> {
  const rule = await readRetention(run.directory);
  if (rule.keep_last === null && rule.keep_best === null) return [];
  return run.changeCheckpoints(async (checkpoints) => {
    const steps = checkpoints.list().map(({ manifest }) => manifest.step);
    const unwanted = stepsToDelete(steps, run.metricFiles.history(), rule);
    await checkpoints.remove(unwanted, 'retention', ({ directory }) => rm(directory, { recursive: true, force: true }));
    return unwanted;
  });
}

function pathOf(runDirectory: string): string {
  return join(runDirectory, 'retention.json');
}
