/** Measures its own peak memory: one optimizer step of LoRA training, in a process that does nothing else. Prints megabytes. */
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { modelByKey } from './models-by-key.ts';
import { createTraining } from './training.ts';

const [key, sequenceCount, microbatchTokens, threads] = process.argv.slice(2);
const runtime = await createOrtRuntime({ threads: Number(threads) });
const training = await createTraining(
  modelByKey(key!),
  runtime,
  Number(sequenceCount),
  Number(microbatchTokens),
  Number(threads),
);
await training.run();
console.log(process.resourceUsage().maxRSS / 1024);
