/** What a training step's checkpoint says about it. Layer 5. From the checkpoint alone, so that it is the same at any later time. */
import { createHash } from 'node:crypto';
import type { TrainResult } from '../../wire/training.ts';
import type { Metrics } from '../training/train-metrics.ts';
import type { CheckpointManifest } from './checkpoint-manifest.ts';
import type { StoredCheckpoint } from './checkpoints.ts';
import type { MetricRows } from './metric-files.ts';

/** The rows that a training step's checkpoint carries; null for step 0. */
export function rowsOf({ manifest }: StoredCheckpoint): MetricRows | null {
  const [history] = manifest.history;
  const [timing] = manifest.timings;
  return history === undefined || timing === undefined ? null : { history, timing };
}

/** The answer to the call that made a checkpoint. */
export function resultOf(checkpoint: StoredCheckpoint): TrainResult {
  const { manifest } = checkpoint;
  return {
    step: manifest.step,
    metrics: metricsOf(manifest),
    checkpoint_path: checkpoint.directory,
    adapter_sha256: weightsSha256(manifest),
  };
}

/** The metrics of a checkpoint's step, timings too. */
export function metricsOf({ history, timings }: Pick<CheckpointManifest, 'history' | 'timings'>): Metrics {
  const metrics: Metrics = {};
  for (const [name, value] of [...history, ...timings].flatMap((row) => Object.entries(row))) {
    if (typeof value === 'number' && name !== 'step' && name !== 'training_step') metrics[name] = value;
  }
  return metrics;
}

/** Hash of the weights' file; for engines that name it otherwise, of the names and hashes of all files. */
export function weightsSha256({ files }: Pick<CheckpointManifest, 'files'>): string {
  const weights = files['adapter_model.safetensors'] ?? files['model.safetensors'];
  if (weights !== undefined) return weights.sha256;
  const lines = Object.entries(files).map(([name, { sha256 }]) => `${name} ${sha256}\n`);
  return createHash('sha256').update(lines.join('')).digest('hex');
}
