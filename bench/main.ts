/**
 * `npm run bench`: what this version does a second, beside what the computer can do at most and beside what one would use instead.
 * What each row means, and how peers are installed: bench/README.md. A missed goal is reported and fails nothing.
 */
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { availableParallelism, cpus, loadavg, totalmem } from 'node:os';
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { createCeiling } from './ceiling.ts';
import { modelByKey } from './models-by-key.ts';
import { type Options, readOptions } from './options.ts';
import { environmentNames, missingReason, setUpPeers } from './peer-setup.ts';
import { Report, round } from './report.ts';
import { benchLinearity } from './stage-linearity.ts';
import { benchMemory } from './stage-memory.ts';
import { benchPipeline } from './stage-pipeline.ts';
import { benchPrompts } from './stage-prompts.ts';
import { benchSampling } from './stage-sampling.ts';
import { benchServer } from './stage-server.ts';
import { benchStep } from './stage-step.ts';
import { benchTraining } from './stage-training.ts';
import type { StageContext } from './stages.ts';

function describeMachine({ threads }: Options): Record<string, unknown> {
  const ort = createRequire(import.meta.url).resolve('onnxruntime-node/package.json');
  return {
    platform: `${process.platform} ${process.arch}`,
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: availableParallelism(),
    memoryGb: round(totalmem() / 2 ** 30),
    threads,
    node: process.versions.node,
    onnxruntime: JSON.parse(readFileSync(ort, 'utf8')).version,
    loadAverage: round(loadavg()[0]!),
  };
}

async function sayWhatIsMissing(): Promise<boolean> {
  const reasons = await Promise.all(environmentNames.map(async (name) => [name, await missingReason(name)] as const));
  const missing = reasons.filter(([, reason]) => reason !== null);
  for (const [name, reason] of missing) console.log(`peers of '${name}' are not measured: ${reason}`);
  return missing.length < reasons.length;
}

/** Returns the highest ceiling met, 0 if none was measured. */
async function benchModels(context: StageContext): Promise<number> {
  const { stages, models } = context.options;
  let ceiling = 0;
  for (const key of models) {
    const model = modelByKey(key);
    if (stages.includes('training')) ceiling = Math.max(ceiling, await benchTraining(context, key, model));
    if (stages.includes('sampling')) ceiling = Math.max(ceiling, await benchSampling(context, key, model));
    if (stages.includes('step')) await benchStep(context, key, model);
  }
  return ceiling;
}

async function measureCeiling(threads: number): Promise<number> {
  const measure = await createCeiling(await createOrtRuntime({ threads }), 8);
  return (await measure()).gflops;
}

async function main(options: Options): Promise<void> {
  if (options.peers.startsWith('install')) await setUpPeers((text) => console.log(text));
  if (options.peers === 'install only') return;
  const machine = describeMachine(options);
  console.log(
    Object.entries(machine)
      .map(([name, value]) => `${name} ${value}`)
      .join(', '),
  );
  if (options.peers !== 'skip') await sayWhatIsMissing();
  const report = new Report();
  const context: StageContext = { report, options, hasPeers: options.peers !== 'skip' };
  const startedAt = performance.now();
  const ceiling = (await benchModels(context)) || (await measureCeiling(options.threads));
  if (options.stages.includes('memory')) await benchMemory(context);
  if (options.stages.includes('prompts')) await benchPrompts(context);
  if (options.stages.includes('linearity')) await benchLinearity(context);
  if (options.stages.includes('server')) await benchServer(context);
  if (options.stages.includes('pipeline')) await benchPipeline(context);
  const { results, details } = report;
  const line = { machine, ceilingGflops: round(ceiling), results };
  const minutes = round((performance.now() - startedAt) / 60_000);
  if (options.out !== undefined) {
    await writeFile(options.out, `${JSON.stringify({ ...line, minutes, details }, null, 2)}\n`);
  }
  if (options.isJson) console.log(JSON.stringify(line));
}

await main(readOptions(process.argv.slice(2)));
