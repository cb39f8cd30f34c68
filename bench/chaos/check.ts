/** What a disturbed run has lost or doubled, by what its server answers and what lies in its folder. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { type Acknowledged, type JobShape, send } from './job.ts';
import { type KilledServer, modelName } from './server.ts';

const readLimitMs = 30_000;

export interface Losses {
  /** Rollouts whose reward was taken and that are not there, trained, with that reward and both turns. */
  readonly lostTrajectories: number;
  /** Steps that were answered and are not in the model, its history or its checkpoints. */
  readonly lostSteps: number;
  /** Steps in the history twice, rollouts trained beside those of the run, turns that stand twice in a rollout. */
  readonly duplicates: number;
  /** Every file that the seed decides has the same bytes as in the undisturbed run. */
  readonly isSame: boolean;
}

interface Summary {
  readonly id: string;
  readonly state: string;
  readonly reward: number;
  readonly calls: number;
}

export async function countLosses(
  server: KilledServer,
  { steps, groups, rollouts: perGroup }: JobShape,
  got: Acknowledged,
  folders: { readonly calm: string; readonly killed: string },
): Promise<Losses> {
  const read = async <T>(path: string): Promise<T> => {
    // The last kill may be of the server, and fall between its address and this call.
    const deadline = performance.now() + readLimitMs;
    let answer = await send(server, got, 'GET', path);
    while ((answer === null || answer.status === 503) && performance.now() < deadline) {
      await setTimeout(100);
      answer = await send(server, got, 'GET', path);
    }
    if (answer?.status !== 200)
      throw new Error(`chaos: ${path} must be answered, got ${answer?.status} ${answer?.text}`);
    return answer.json as T;
  };
  const { step } = await read<{ step: number }>(`/api/models/${modelName}`);
  const { rows } = await read<{ rows: { split: string; step: number }[] }>(
    `/api/models/${modelName}/history?limit=1000`,
  );
  const trained = rows.filter(({ split }) => split === 'train').map((row) => row.step);
  const isThere = (answered: number): boolean => answered <= step && trained.includes(answered);
  let lostTrajectories = got.lost.size;
  let duplicates = trained.length - new Set(trained).size;
  for (const [id, reward] of got.rollouts) {
    const rollout = await read<Summary>(`/api/rollouts/${id}`);
    if (rollout.state !== 'trained' || rollout.reward !== reward || rollout.calls < 2) lostTrajectories += 1;
    if (rollout.calls > 2) duplicates += 1;
  }
  const extra = await read<{ rollouts: Summary[] }>('/api/rollouts?state=trained&limit=1000');
  duplicates += extra.rollouts.filter(({ id }) => !got.rollouts.has(id)).length;
  const wanted = steps * groups * perGroup;
  if (got.rollouts.size < wanted) lostTrajectories += wanted - got.rollouts.size;
  return {
    lostTrajectories,
    lostSteps: [...got.steps.keys()].filter((answered) => !isThere(answered)).length,
    duplicates,
    isSame: await sameFiles(folders.calm, folders.killed),
  };
}

/** History, adapters, optimizer states and trajectories. */
async function sameFiles(calm: string, killed: string): Promise<boolean> {
  const seeded = async (root: string): Promise<string[]> =>
    (await readdir(root, { recursive: true }))
      .filter((name) => /history\.jsonl$|\.safetensors$|trajectories.*\.jsonl$/.test(name))
      .sort();
  const [names, others] = await Promise.all([seeded(calm), seeded(killed)]);
  if (names.join() !== others.join()) return false;
  for (const name of names) {
    const [a, b] = await Promise.all([readFile(join(calm, name)), readFile(join(killed, name))]);
    if (!a.equals(b)) return false;
  }
  return names.length > 0;
}
