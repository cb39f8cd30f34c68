/** What each request of a fuzz run is: a function of the seed and its number alone. */
import { createRng, type Rng } from '../../src/core/rng.ts';
import { validBody } from './bodies.ts';
import { corrupt, type Json, mutate } from './mutate.ts';

export interface Route {
  readonly method: string;
  /** As the router has it, `/api/models/:name`. */
  readonly path: string;
}

/** How the client behaves on the wire. */
export type Behaviour = 'whole' | 'cut request' | 'slow request' | 'cut answer' | 'slow answer';

export interface Attempt {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer | null;
  readonly behaviour: Behaviour;
  /** What the request carries where its route gives an answer of its own; only this may stand in the answer. */
  readonly marker: string | null;
  /** Nothing about it is damaged, so that the answer must have the marker. */
  readonly isValid: boolean;
}

const pick = <T>(items: readonly T[], rng: Rng): T => items[rng.integer(items.length)] as T;

const oddParameters = [
  '..',
  '%2e%2e%2fetc',
  '%00',
  'a'.repeat(300),
  '__proto__',
  'fuzz@0',
  'fuzz@999',
  '%F0%9F%92%A9',
  '-',
];
const oddMethods = ['PUT', 'PATCH', 'DELETE', 'OPTIONS', 'HEAD', 'GET', 'POST'];
const oddContentTypes = [
  'text/plain',
  'application/x-www-form-urlencoded',
  'application/json; charset=utf-16',
  'x',
  '',
];

/** Where nobody may read what another request said. */
const privatePath = /^\/(v1|rollouts\/[^/]+\/v1)\/(chat\/completions|completions|responses|messages)$/;

export function planAttempt(seed: number, index: number, routes: readonly Route[], baseModel: string): Attempt {
  const rng = createRng(seed, 'attempt', index);
  const marker = `mk-${rng.uint32().toString(16).padStart(8, '0')}`;
  const route = pick(routes, rng);
  const damage = rng.integer(100);
  const isValid = damage < 40;
  const path = fillPath(route.path, isValid, rng);
  const template = validBody(route, { marker, index, baseModel, rng });
  const attempt = {
    method: !isValid && rng.integer(20) === 0 ? pick(oddMethods, rng) : route.method,
    path: !isValid && rng.integer(10) === 0 ? `${path}?${oddQuery(rng)}` : path,
    behaviour: chooseBehaviour(rng),
    marker: route.method === 'POST' && privatePath.test(path) ? marker : null,
  };
  if (attempt.method === 'GET' || attempt.method === 'HEAD')
    return { ...attempt, headers: {}, body: null, isValid: false };
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (isValid || template === null) {
    const body = template === null ? null : toBytes(template);
    return { ...attempt, headers, body, isValid: isValid && template !== null && attempt.marker !== null };
  }
  const bytes = toBytes(mutate(template, rng));
  if (damage >= 95) headers['content-type'] = pick(oddContentTypes, rng);
  return { ...attempt, headers, body: damage >= 80 ? corrupt(bytes, rng) : bytes, isValid: false };
}

function toBytes(value: Json): Buffer {
  return Buffer.from(JSON.stringify(value));
}

function fillPath(path: string, isValid: boolean, rng: Rng): string {
  return path.replace(/:(\w+)(\{[^}]*\})?/g, (_, name: string) => {
    if (!isValid && rng.integer(3) === 0) return pick(oddParameters, rng);
    if (name === 'name' || (name === 'id' && path.includes('/models/'))) return 'fuzz';
    return `f-${rng.integer(1000)}`;
  });
}

function oddQuery(rng: Rng): string {
  return pick(
    ['model=fuzz', 'from=-1&to=x', 'split=../..', 'a=1&a=2', '%', 'limit=1e9', 'state=open', `q=${'x'.repeat(2000)}`],
    rng,
  );
}

function chooseBehaviour(rng: Rng): Behaviour {
  const draw = rng.integer(100);
  if (draw < 88) return 'whole';
  if (draw < 92) return 'cut request';
  if (draw < 94) return 'slow request';
  return draw < 98 ? 'cut answer' : 'slow answer';
}
