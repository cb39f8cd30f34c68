/**
 * Runs GGUF files in llama.cpp through node-llama-cpp, in a process of its own: `node llama-runner.mjs <folder of node-llama-cpp>`.
 * Reads {jobs: [{model, lora, promptIds, continuationIds, texts}]} from standard input, writes {results: […]} to standard output.
 * Per job: `greedyIds`, as many as the continuation has; `argmaxIds` and `logprobs`, the likeliest id and the log-probability of the given
 * one at each place of the continuation; `textIds`, each text tokenised with special tokens.
 */
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';

const [folder] = process.argv.slice(2);
const entry = join(folder, 'node_modules', 'node-llama-cpp', 'dist', 'index.js');
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(entry).href);

const llama = await getLlama({ gpu: false, build: 'never', logLevel: LlamaLogLevel.error, maxThreads: 1 });
const { jobs } = JSON.parse(await text(process.stdin));
const results = [];
for (const job of jobs) results.push(await runJob(job));
process.stdout.write(JSON.stringify({ results }));
await llama.dispose();

async function runJob({ model: modelPath, lora, promptIds, continuationIds, texts }) {
  const model = await llama.loadModel({ modelPath, gpuLayers: 0 });
  // Half floats in the cache would hide how exact the weights are.
  const context = await model.createContext({
    // One: on a busy machine threads of ggml wait for each other in loops.
    threads: 1,
    contextSize: promptIds.length + continuationIds.length + 8,
    experimentalKvCacheKeyType: 'F32',
    experimentalKvCacheValueType: 'F32',
    flashAttention: false,
    ...(lora !== null && { lora: { adapters: [{ filePath: lora, scale: 1 }] } }),
  });
  const sequence = context.getSequence();
  const greedyIds = [];
  if (continuationIds.length > 0) {
    for await (const id of sequence.evaluate(promptIds, { temperature: 0, yieldEogToken: true })) {
      greedyIds.push(id);
      if (greedyIds.length === continuationIds.length) break;
    }
    await sequence.clearHistory();
  }
  const { argmaxIds, logprobs } = await score(sequence, promptIds, continuationIds);
  const textIds = texts.map((item) => [...model.tokenize(item, true)]);
  await model.dispose();
  return { greedyIds, argmaxIds, logprobs, textIds };
}

async function score(sequence, promptIds, continuationIds) {
  const ids = [...promptIds, ...continuationIds];
  const first = promptIds.length - 1;
  const wanted = { generateNext: { probabilities: true, options: { temperature: 1, topK: 0, topP: 1, minP: 0 } } };
  const input = ids.slice(0, -1).map((id, index) => (index < first ? id : [id, wanted]));
  const outputs = await sequence.controlledEvaluate(input);
  const argmaxIds = [];
  const logprobs = [];
  for (const [index, id] of continuationIds.entries()) {
    const { probabilities } = outputs[first + index].next;
    argmaxIds.push(probabilities.keys().next().value);
    logprobs.push(Math.log(probabilities.get(id)));
  }
  return { argmaxIds, logprobs };
}
