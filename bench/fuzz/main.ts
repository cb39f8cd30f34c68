/**
 * `npm run fuzz`: random and malformed bodies, cut streams and slow clients on every route of a server in this process.
 * Its last line counts what must not happen: answers of 500 and above, requests without an end, words of another request.
 */
import { Agent } from 'node:http';
import { parseArgs } from 'node:util';
import { type Outcome, sendAttempt } from './client.ts';
import { type Attempt, planAttempt, type Route } from './plan.ts';
import { type FuzzTarget, markerPattern, startTarget } from './target.ts';

interface FuzzOptions {
  readonly requests: number;
  readonly concurrency: number;
  readonly seed: number;
  readonly isJson: boolean;
}

interface Tally {
  requests: number;
  status5xx: number;
  hangs: number;
  /** Answers with words of another request. */
  crossed: number;
  /** Undamaged requests whose answer, fully read, lacks their own words. */
  unanswered: number;
  slowestMs: number;
  slowest: string;
  readonly statuses: Record<string, number>;
}

const shownFailures = 20;

/** Throws Error with the rule that an argument breaks. */
function readOptions(args: readonly string[]): FuzzOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      requests: { type: 'string', default: '10000' },
      concurrency: { type: 'string', default: '64' },
      seed: { type: 'string', default: '0' },
      json: { type: 'boolean', default: false },
    },
  });
  const number = (name: 'requests' | 'concurrency' | 'seed', least: number, most: number): number => {
    const value = Number(values[name]);
    if (Number.isSafeInteger(value) && value >= least && value <= most) return value;
    throw new Error(`--${name}: must be a whole number from ${least} to ${most}, got '${values[name]}'`);
  };
  return {
    requests: number('requests', 1, 10_000_000),
    concurrency: number('concurrency', 1, 1000),
    seed: number('seed', 0, 2 ** 32 - 1),
    isJson: values.json,
  };
}

async function fuzz(target: FuzzTarget, options: FuzzOptions): Promise<Tally> {
  const tally: Tally = {
    requests: 0,
    status5xx: 0,
    hangs: 0,
    crossed: 0,
    unanswered: 0,
    slowestMs: 0,
    slowest: '',
    statuses: {},
  };
  const routes = routesOf(target);
  const agent = new Agent({ keepAlive: true, maxSockets: options.concurrency });
  let next = 0;
  let failures = 0;
  const work = async (): Promise<void> => {
    while (next < options.requests) {
      const index = next++;
      const attempt = planAttempt(options.seed, index, routes, target.baseModel);
      const outcome = await sendAttempt(attempt, target.port, agent);
      const failure = count(tally, attempt, outcome);
      if (failure !== null && failures++ < shownFailures) console.error(describe(index, failure, attempt, outcome));
    }
  };
  try {
    await Promise.all(Array.from({ length: options.concurrency }, work));
  } finally {
    agent.destroy();
  }
  return tally;
}

/** Every route of the application, and one path that is none. */
function routesOf({ server }: FuzzTarget): Route[] {
  const known = server.app.routes.filter(({ method, path }) => method !== 'ALL' && !path.includes('*'));
  const unique = new Map(known.map(({ method, path }) => [`${method} ${path}`, { method, path }]));
  return [...unique.values(), { method: 'POST', path: '/v1/unknown' }];
}

/** What must not have happened, or null. */
function count(tally: Tally, attempt: Attempt, { status, text, isHung, milliseconds }: Outcome): string | null {
  tally.requests += 1;
  tally.statuses[String(status)] = (tally.statuses[String(status)] ?? 0) + 1;
  if (milliseconds > tally.slowestMs) {
    tally.slowestMs = milliseconds;
    tally.slowest = `${attempt.method} ${attempt.path.slice(0, 100)} (${attempt.behaviour}, ${attempt.body?.length ?? 0} bytes)`;
  }
  if (isHung) {
    tally.hangs += 1;
    return 'no end';
  }
  if (status !== null && status >= 500) {
    tally.status5xx += 1;
    return `status ${status}`;
  }
  if (attempt.marker === null) return null;
  const markers = text.match(markerPattern) ?? [];
  if (markers.some((marker) => marker !== attempt.marker)) {
    tally.crossed += 1;
    return 'words of another request';
  }
  const isRead = attempt.behaviour === 'whole' || attempt.behaviour.startsWith('slow');
  // Streams give a marker in pieces, so there only its absence from all the text would be one.
  // Full queues and ended rollouts are good reasons to refuse.
  const isRefused = status === 429 || status === 409;
  if (!attempt.isValid || !isRead || isRefused || text.startsWith('data:') || text.startsWith('event:')) return null;
  if (status === 200 && markers.length > 0) return null;
  tally.unanswered += 1;
  return 'an undamaged request without its answer';
}

function describe(index: number, failure: string, attempt: Attempt, outcome: Outcome): string {
  const body = attempt.body?.toString('utf8').slice(0, 400) ?? '';
  return `request ${index}: ${failure}: ${attempt.method} ${attempt.path} (${attempt.behaviour})\n  ${body}\n  → ${outcome.status} ${outcome.text.slice(0, 400)}`;
}

async function main(): Promise<void> {
  const options = readOptions(process.argv.slice(2));
  await using target = await startTarget();
  const startedAt = performance.now();
  const tally = await fuzz(target, options);
  const seconds = (performance.now() - startedAt) / 1000;
  const health = await fetch(`${target.server.url}/healthz`, { signal: AbortSignal.timeout(10_000) });
  const running = await target.runningSequences();
  const isAlive = health.ok && running === 0;
  if (!isAlive) console.error(`after the run: health ${health.status}, ${running} sequences still running`);
  if (!options.isJson)
    console.log(
      `${tally.requests} requests in ${seconds.toFixed(1)} s; the slowest was ${tally.slowest}; by status:`,
      tally.statuses,
    );
  const { requests, status5xx, hangs, crossed, unanswered, slowestMs } = tally;
  const { seed } = options;
  console.log(
    JSON.stringify({
      requests,
      status5xx,
      hangs,
      crossed,
      unanswered,
      running,
      seed,
      seconds: Math.round(seconds),
      slowestMs: Math.round(slowestMs),
    }),
  );
  if (status5xx + hangs + crossed + unanswered > 0 || !isAlive) process.exitCode = 1;
}

await main();
