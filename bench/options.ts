/** Command line of the benchmarks. */
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { modelKeys } from './models-by-key.ts';

export const stages = ['training', 'sampling', 'step', 'memory', 'prompts', 'linearity', 'server', 'pipeline'] as const;
export type Stage = (typeof stages)[number];

/** The stages that have peers. */
const comparedStages: readonly Stage[] = ['training', 'sampling', 'step'];

export interface Options {
  readonly threads: number;
  readonly isQuick: boolean;
  readonly isJson: boolean;
  readonly stages: readonly Stage[];
  readonly models: readonly string[];
  readonly out: string | undefined;
  readonly peers: 'run' | 'skip' | 'install' | 'install only';
}

/** Throws Error with the rule that an argument breaks. */
export function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      json: { type: 'boolean', default: false },
      quick: { type: 'boolean', default: false },
      only: { type: 'string' },
      models: { type: 'string' },
      threads: { type: 'string', default: String(availableParallelism()) },
      out: { type: 'string' },
      peers: { type: 'boolean', default: false },
      'no-peers': { type: 'boolean', default: false },
      'set-up-peers': { type: 'boolean', default: false },
    },
  });
  if (!/^[1-9]\d{0,2}$/.test(values.threads)) {
    throw new Error(`--threads: must be a whole number from 1, got '${values.threads}'`);
  }
  return {
    threads: Number(values.threads),
    isQuick: values.quick,
    isJson: values.json,
    stages: values.only === 'peers' ? comparedStages : readList('--only', values.only, stages),
    models: readList('--models', values.models ?? (values.quick ? 'starter' : '3M,27M,135M'), modelKeys),
    out: values.out,
    peers: values['set-up-peers'] ? 'install only' : values.peers ? 'install' : values['no-peers'] ? 'skip' : 'run',
  };
}

function readList<T extends string>(name: string, text: string | undefined, known: readonly T[]): readonly T[] {
  if (text === undefined) return known;
  const wanted = text.split(',');
  const unknown = wanted.find((item) => !known.some((one) => one === item));
  if (unknown !== undefined) throw new Error(`${name}: must be some of ${known.join(',')}, got '${unknown}'`);
  return known.filter((item) => wanted.includes(item));
}
