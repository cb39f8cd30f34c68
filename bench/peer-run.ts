/** Runs a script of a peer in its environment: JSON in, one line of JSON out; whatever goes wrong becomes a reason. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import type { Sample } from './measure.ts';
import { type EnvironmentName, missingReason, peerFolder, pythonOf, scriptFolder } from './peer-setup.ts';

export interface PeerReport {
  readonly samples: readonly (Sample & Readonly<Record<string, number>>)[];
  /** Of one sample. */
  readonly tokens: number;
  readonly peakRssMb: number;
  readonly versions: Readonly<Record<string, string>>;
}

export type PeerOutcome = ({ readonly isRun: true } & PeerReport) | { readonly isRun: false; readonly reason: string };

export interface PeerJob {
  readonly environment: EnvironmentName;
  readonly script: string;
  readonly input: Readonly<Record<string, unknown>> & { readonly threads: number };
  readonly timeoutMs: number;
}

export async function runPeer(job: PeerJob): Promise<PeerOutcome> {
  const reason = await missingReason(job.environment);
  if (reason !== null) return { isRun: false, reason };
  const isNode = job.environment === 'node';
  const input = isNode ? { ...job.input, modules: join(peerFolder, 'node') } : job.input;
  const command = isNode ? process.execPath : pythonOf(job.environment);
  try {
    const output = await runScript(command, [join(scriptFolder, job.script)], JSON.stringify(input), job);
    return { isRun: true, ...(JSON.parse(output.trimEnd().split('\n').at(-1) ?? '') as PeerReport) };
  } catch (error) {
    return { isRun: false, reason: error instanceof Error ? error.message : String(error) };
  }
}

/** Standard output of a script. Rejects with the last line it wrote to standard error. */
export function runScript(
  command: string,
  args: readonly string[],
  input: string,
  { input: { threads }, timeoutMs }: Pick<PeerJob, 'input' | 'timeoutMs'>,
): Promise<string> {
  const env = {
    ...process.env,
    OMP_NUM_THREADS: String(threads),
    TOKENIZERS_PARALLELISM: 'false',
    HF_HUB_OFFLINE: '1',
    PYTHONDONTWRITEBYTECODE: '1',
  };
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      env,
      timeout: timeoutMs,
      killSignal: 'SIGKILL',
    });
    let output = '';
    let errors = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      errors = (errors + text).slice(-4000);
    });
    child.stdin.on('error', () => undefined); // It ended before it read everything; the exit says why.
    child.stdin.end(input);
    child.on('error', reject);
    child.on('close', (code, signal) => {
      const last = errors.trimEnd().split('\n').at(-1)?.trim();
      if (code === 0) resolve(output);
      else if (signal === 'SIGKILL') reject(new Error(`did not end within ${timeoutMs / 1000} s`));
      else reject(new Error(`ended with ${signal ?? `exit code ${code}`}${last ? `: ${last}` : ''}`));
    });
  });
}
