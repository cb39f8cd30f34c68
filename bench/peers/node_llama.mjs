/**
 * node-llama-cpp: 32 sequences evaluated side by side, which it batches by itself.
 * stdin: JSON {modules, gguf, threads, sequences: [[id]], newTokens, warmUps, iterations}; `modules` is the folder it is installed in.
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const args = JSON.parse(readFileSync(0, 'utf8'));
const require = createRequire(join(args.modules, 'package.json'));
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(require.resolve('node-llama-cpp')).href);
const count = args.sequences.length;
const llama = await getLlama({
  gpu: false,
  build: 'never',
  progressLogs: false,
  maxThreads: args.threads,
  logLevel: LlamaLogLevel.error,
});
const model = await llama.loadModel({ modelPath: args.gguf, gpuLayers: 0 });
const context = await model.createContext({
  sequences: count,
  contextSize: args.sequences[0].length + args.newTokens + 8,
  batchSize: 2048,
  threads: args.threads,
  flashAttention: args.flash === 'on',
  batching: { dispatchSchedule: 'nextCycle' },
});
const slots = Array.from({ length: count }, () => context.getSequence());

async function run() {
  for (const slot of slots) await slot.clearHistory();
  let firstAt = 0;
  const start = performance.now();
  await Promise.all(
    slots.map(async (slot, index) => {
      let sampled = 0;
      const draws = slot.evaluate(args.sequences[index], {
        temperature: 1,
        topK: 0,
        topP: 1,
        minP: 0,
        seed: index + 1,
        yieldEogToken: true,
      });
      for await (const _ of draws) {
        if (firstAt === 0) firstAt = performance.now();
        if (++sampled === args.newTokens) break;
      }
      if (sampled !== args.newTokens)
        throw new Error(`node-llama-cpp: must give ${args.newTokens} tokens, got ${sampled}`);
    }),
  );
  return { prefillSeconds: (firstAt - start) / 1000 };
}

for (let i = 0; i < args.warmUps; i++) await run();
const samples = [];
for (let i = 0; i < args.iterations; i++) {
  const cpu = process.cpuUsage();
  const startedAt = performance.now();
  const extra = await run();
  const seconds = (performance.now() - startedAt) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  samples.push({ seconds, cpuSeconds: (user + system) / 1e6, ...extra });
}
const { version } = JSON.parse(readFileSync(join(args.modules, 'node_modules/node-llama-cpp/package.json'), 'utf8'));
console.log(
  JSON.stringify({
    samples,
    tokens: count * args.newTokens,
    peakRssMb: process.resourceUsage().maxRSS / 1024,
    versions: { 'node-llama-cpp': version, node: process.versions.node },
  }),
);
process.exit(0);
