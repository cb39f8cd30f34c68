/** llama.cpp, where `npm run test:export` has installed it, in a process of its own. */
import { spawn } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { expect } from 'vitest';

/** Undefined if it is not there: tests that need it are skipped. */
export const llamaFolder: string | undefined = process.env.ART_NODE_LLAMA_CPP;

export interface Job {
  readonly model: string;
  /** Adapter to put on it. */
  readonly lora: string | null;
  readonly promptIds: readonly number[];
  readonly continuationIds: readonly number[];
  /** To tokenise. */
  readonly texts: readonly string[];
}

export interface JobResult {
  /** As many as the continuation has. */
  readonly greedyIds: readonly number[];
  /** Likeliest id, and logprob of the given one, at each place of the continuation. */
  readonly argmaxIds: readonly number[];
  readonly logprobs: readonly number[];
  readonly textIds: readonly (readonly number[])[];
}

export async function runLlama(jobs: readonly Job[]): Promise<readonly JobResult[]> {
  const runner = fileURLToPath(new URL('llama-runner.mjs', import.meta.url));
  const child = spawn(process.execPath, [runner, llamaFolder!], { stdio: ['pipe', 'pipe', 'pipe'] });
  const exit = new Promise<number | null>((resolve) => child.on('exit', resolve));
  child.stdin.end(JSON.stringify({ jobs }));
  const [out, errors] = await Promise.all([text(child.stdout), text(child.stderr)]);
  expect(await exit, errors).toBe(0);
  return (JSON.parse(out) as { results: readonly JobResult[] }).results;
}
