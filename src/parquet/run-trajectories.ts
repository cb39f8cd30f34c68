/** The trajectories of runs as rows: from run folders of this computer, or from a server. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ConfigError, DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { isMissing } from '../formats/atomic-files.ts';
import { fetchText } from '../sdk/fetch-text.ts';
import { trajectoryFiles } from '../wire/data.ts';
import { checkRow } from './parquet-columns.ts';
import type { Row } from './trajectory-row.ts';

export interface TrajectoryFilter {
  /** Models of the project, or of the server; default all. */
  readonly models?: readonly string[];
  readonly splits?: readonly string[];
  /** Steps `from` to `to`, both included. */
  readonly from?: number;
  readonly to?: number;
}

export interface LoadTrajectoriesOptions extends TrajectoryFilter {
  readonly project: string;
  /** Folder of all runs; default `.art`. */
  readonly path?: string;
}

export interface FetchTrajectoriesOptions extends TrajectoryFilter {
  readonly models: readonly string[];
  /** Root of a server, as in `http://gpu-box:8000`. */
  readonly baseURL: string;
  /** Default: the environment's ART_API_KEY, else `art-local`. */
  readonly apiKey?: string;
  readonly signal?: AbortSignal;
  /** Limit of one file; default 60 s. */
  readonly timeoutMs?: number;
}

const filterKeys = ['models', 'splits', 'from', 'to'];

/**
 * What the runs of a project stored, ordered by model, split, step and place in the file. A last line that is being written is left out.
 * Throws DataError if the project or a named model is not there, and for a line that is no trajectory.
 */
export async function loadTrajectories(options: LoadTrajectoriesOptions): Promise<Row[]> {
  refuseUnknownKeys('loadTrajectories', options, [...filterKeys, 'project', 'path']);
  const folder = join(options.path ?? '.art', options.project, 'models');
  const present = await listNames(folder);
  if (present === null)
    throw new DataError(`loadTrajectories: project ${options.project} must have runs in ${folder}, got none`);
  const unknown = options.models?.find((name) => !present.includes(name));
  if (unknown !== undefined) {
    throw new DataError(
      `loadTrajectories: models must be of ${folder}, which has ${present.join(', ')}; got ${unknown}`,
    );
  }
  const rows: Row[] = [];
  for (const model of options.models ?? present) {
    for (const split of (await listNames(join(folder, model, 'trajectories'))) ?? []) {
      for (const file of (await listNames(join(folder, model, 'trajectories', split))) ?? []) {
        const step = stepOf(file);
        if (step === null || !isWanted(options, split, step)) continue;
        const text = await readFile(join(folder, model, 'trajectories', split, file), 'utf8');
        for (const row of parseLines(text, { model, split, step })) rows.push(row);
      }
    }
  }
  return rows;
}

/** The same from a server. Throws ApiError, with status 0 where no whole answer came; AbortedError at the limit or by the signal. */
export async function fetchTrajectories(options: FetchTrajectoriesOptions): Promise<Row[]> {
  const known = [...filterKeys, 'baseURL', 'apiKey', 'signal', 'timeoutMs'];
  refuseUnknownKeys('fetchTrajectories', options, known);
  if (!URL.canParse(options.baseURL)) {
    throw new ConfigError(`fetchTrajectories: baseURL must be a URL like http://host:8000, got ${options.baseURL}`);
  }
  const rows: Row[] = [];
  for (const model of options.models) {
    const path = `/api/models/${encodeURIComponent(model)}/trajectories`;
    const { files } = trajectoryFiles.parse(JSON.parse(await get(options, path)));
    for (const { split, step } of files) {
      if (!isWanted(options, split, step)) continue;
      const text = await get(options, `${path}/${split}/${step}`);
      for (const row of parseLines(text, { model, split, step })) rows.push(row);
    }
  }
  return rows;
}

function get({ baseURL, apiKey, signal, timeoutMs = 60_000 }: FetchTrajectoriesOptions, path: string): Promise<string> {
  const url = baseURL.replace(/\/+$/, '') + path;
  const headers = { authorization: `Bearer ${apiKey ?? process.env.ART_API_KEY ?? 'art-local'}` };
  return fetchText({ what: `trajectories: GET ${url}`, url, headers, timeoutMs, signal });
}

/** Sorted; null if there is no such folder. */
async function listNames(folder: string): Promise<string[] | null> {
  return readdir(folder).then(
    (names) => names.sort(),
    (error: unknown) => {
      if (isMissing(error)) return null;
      throw error;
    },
  );
}

function stepOf(file: string): number | null {
  const digits = /^(\d+)\.jsonl$/.exec(file)?.[1];
  return digits === undefined ? null : Number(digits);
}

function isWanted(
  { splits, from = 0, to = Number.POSITIVE_INFINITY }: TrajectoryFilter,
  split: string,
  step: number,
): boolean {
  return (splits === undefined || splits.includes(split)) && from <= step && step <= to;
}

/** Lines as a run's files hold them, in snake case, as rows. */
function parseLines(
  text: string,
  place: { readonly model: string; readonly split: string; readonly step: number },
): Row[] {
  const lines = text.split('\n').slice(0, -1);
  return lines.map((line, index) => {
    const where = `trajectories of ${place.model}, split ${place.split}, step ${place.step}, line ${index + 1}`;
    let value: Record<string, unknown>;
    try {
      value = JSON.parse(line) as Record<string, unknown>;
    } catch (cause) {
      throw new DataError(`${where}: must be JSON, got ${line.slice(0, 80)}`, { cause });
    }
    return checkRow({ ...place, ...fromLine(value) }, where);
  });
}

function fromLine(line: Record<string, unknown>): Record<string, unknown> {
  // What the storage policy kept off the disk is empty.
  const { metadata = {}, logs = [], exceptions = [] } = line;
  if (!('trajectory' in line)) {
    return {
      kind: 'group',
      ...line,
      metadata,
      logs,
      exceptions: Array.isArray(exceptions) ? exceptions : unnamed(exceptions),
    };
  }
  const { entries = [], tools = null, turn_rewards: turnRewards = [], additional_histories: others = [] } = line;
  const additionalHistories = (others as object[]).map((history) => ({ tools: null, ...history }));
  return { kind: 'trajectory', ...line, metadata, logs, entries, tools, turnRewards, additionalHistories };
}

/** Failures of which only the number is stored. */
function unnamed(count: unknown): object[] {
  return Array.from({ length: Number(count) }, () => ({ type: 'Error', message: 'not stored' }));
}
