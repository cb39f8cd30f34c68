/**
 * The training run that is disturbed: an agent by plain HTTP, without the SDK. Two-turn rollouts that the server collects, a reward that
 * ends each, and one `train` call a step. Everything sampled has a seed, so that a rollout that is done again gives the same tokens.
 */
import { deriveSeed } from '../../src/core/rng.ts';
import { pause } from '../../src/core/wait.ts';
import { type KilledServer, modelName } from './server.ts';

export interface JobShape {
  readonly steps: number;
  readonly groups: number;
  readonly rollouts: number;
}

/** What the server said it has done. */
export interface Acknowledged {
  /** Rewards by rollout id. */
  readonly rollouts: Map<string, number>;
  /** Hashes of the adapter by step. */
  readonly steps: Map<number, string>;
  /** Rollouts that the server had acknowledged and then did not know. */
  readonly lost: Set<string>;
  /** Answers that were not those of success, by status or kind: how much was disturbed. */
  readonly failures: Map<string, number>;
}

interface Message {
  readonly role: string;
  readonly content: string;
}

interface Answer {
  readonly status: number;
  readonly json: unknown;
  readonly text: string;
}

const requestLimitMs = 60_000;
const operationLimitMs = 180_000;
const retryMs = 50;

/** Runs all steps; `onStep` hears of each before it begins. */
export async function runJob(
  server: KilledServer,
  shape: JobShape,
  onStep: (step: number) => void,
): Promise<Acknowledged> {
  const done: Acknowledged = { rollouts: new Map(), steps: new Map(), lost: new Set(), failures: new Map() };
  for (let step = 1; step <= shape.steps; step++) {
    onStep(step);
    const groups = Array.from({ length: shape.groups }, (_, group) =>
      Promise.all(Array.from({ length: shape.rollouts }, (_, index) => rollOut(server, done, [step, group, index]))),
    );
    const ids = await Promise.all(groups);
    await train(server, done, step, ids);
  }
  return done;
}

/**
 * A rollout, whole and rewarded. A turn that was cut short is asked for again in the same rollout, also of a server that was started again
 * meanwhile; only where the server refuses that another attempt begins.
 */
async function rollOut(server: KilledServer, done: Acknowledged, place: readonly number[]): Promise<string> {
  const [step, group, index] = place;
  const startedAt = performance.now();
  for (let attempt = 0; performance.now() - startedAt < operationLimitMs; attempt++) {
    const id = `s${step}.g${group}.r${index}.a${attempt}`;
    const messages: Message[] = [{ role: 'user', content: `say ${['yes', 'no', 'up', 'down'][group! % 4]}` }];
    let text = '';
    for (let turn = 0; turn < 2; turn++) {
      const seed = deriveSeed('chaos', ...place, turn) % 2 ** 31;
      const body = { model: modelName, messages, seed, max_tokens: 8 };
      const answer = await sendUntilAnswered(server, done, `/rollouts/${id}/v1/chat/completions`, body);
      if (answer.status !== 200) break;
      const { choices } = answer.json as { choices: { message: Message }[] };
      const { content } = choices[0]!.message;
      text += `${content}\n`;
      messages.push({ role: 'assistant', content }, { role: 'user', content: 'again' });
    }
    if (messages.length === 5 && (await reward(server, done, id, rewardOf(text)))) return id;
    await pause(retryMs);
  }
  throw new Error(`chaos: rollout ${place.join('.')} must be whole within ${operationLimitMs} ms, was not`);
}

/** Again after broken connections and 503, as a client's retries do it. */
async function sendUntilAnswered(
  server: KilledServer,
  done: Acknowledged,
  path: string,
  body: unknown,
): Promise<Answer> {
  const startedAt = performance.now();
  while (performance.now() - startedAt < operationLimitMs) {
    const answer = await send(server, done, 'POST', path, body);
    if (answer !== null && answer.status !== 503) return answer;
    await pause(retryMs);
  }
  throw new Error(`chaos: ${path} must be answered within ${operationLimitMs} ms, was not`);
}

/** Any function of the text that differs between rollouts. */
function rewardOf(text: string): number {
  return (new Set(text).size % 16) / 16;
}

/** False if the server does not have the rollout: a turn was answered and is gone. */
async function reward(server: KilledServer, done: Acknowledged, id: string, value: number): Promise<boolean> {
  const startedAt = performance.now();
  while (performance.now() - startedAt < operationLimitMs) {
    const answer = await send(server, done, 'POST', `/api/rollouts/${id}/reward`, { reward: value });
    if (answer?.status === 200) {
      done.rollouts.set(id, value);
      return true;
    }
    if (answer?.status === 404 || answer?.status === 409) {
      done.lost.add(id);
      return false;
    }
    await pause(retryMs);
  }
  throw new Error(`chaos: the reward of ${id} must be taken within ${operationLimitMs} ms, was not`);
}

async function train(
  server: KilledServer,
  done: Acknowledged,
  step: number,
  ids: readonly (readonly string[])[],
): Promise<void> {
  const body = {
    idempotency_key: `step-${step}`,
    groups: ids.map((rollouts) => ({ rollouts })),
    options: { learning_rate: 0.01 },
  };
  const startedAt = performance.now();
  let got = 'nothing';
  while (performance.now() - startedAt < operationLimitMs) {
    const answer = await send(server, done, 'POST', `/api/models/${modelName}/train`, body);
    const result = answer === null ? null : lastEvent(answer.text);
    if (result?.event === 'result') {
      done.steps.set(step, (result.data as { adapter_sha256: string }).adapter_sha256);
      return;
    }
    if (result !== null) count(done, `train: ${JSON.stringify(result.data).slice(0, 120)}`);
    got = answer?.text.slice(-500) ?? 'a broken connection';
    await pause(retryMs);
  }
  throw new Error(`chaos: step ${step} must be trained within ${operationLimitMs} ms, last answer: ${got}`);
}

/** The last whole server-sent event that is no progress; null if there is none. */
function lastEvent(text: string): { readonly event: string; readonly data: unknown } | null {
  const match = [...text.matchAll(/event: (result|error)\ndata: (.*)\n\n/g)].at(-1);
  return match === undefined ? null : { event: match[1]!, data: JSON.parse(match[2]!) };
}

/** Null where the connection broke, which is what a killed server looks like. */
export async function send(
  server: KilledServer,
  done: Pick<Acknowledged, 'failures'>,
  method: string,
  path: string,
  body?: unknown,
): Promise<Answer | null> {
  const url = await server.url();
  try {
    const response = await fetch(url + path, {
      method,
      signal: AbortSignal.timeout(requestLimitMs),
      ...(body !== undefined && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
    const text = await response.text();
    if (response.status !== 200) count(done, `${response.status} ${text.slice(0, 120)}`);
    const isJson = response.headers.get('content-type')?.startsWith('application/json') === true;
    return { status: response.status, text, json: isJson ? (JSON.parse(text) as unknown) : null };
  } catch (error) {
    count(done, error instanceof Error ? error.name : 'unknown');
    return null;
  }
}

function count({ failures }: Pick<Acknowledged, 'failures'>, kind: string): void {
  failures.set(kind, (failures.get(kind) ?? 0) + 1);
}
