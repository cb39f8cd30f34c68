/** Reading a run's metrics and trajectories. Layer 5. Split and step are checked before they become a file name. */
import { createReadStream } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { isMissing } from '../../formats/atomic-files.ts';
import type { apiRoutes } from '../../wire/api-routes.ts';
import { type HistoryQuery, splitName } from '../../wire/data.ts';
import { refuse } from '../../wire/errors.ts';
import { pathParam, type RouteHandlers, stepParam } from '../http/routes.ts';
import type { MetricRow } from '../store/metric-files.ts';
import { trajectoryPath } from '../store/trajectory-files.ts';
import type { ModelRegistry } from './model-registry.ts';

const maxRows = 10_000;

type Names = 'history' | 'metrics' | 'metricNames' | 'listTrajectories' | 'trajectories';

export function dataHandlers(registry: ModelRegistry): RouteHandlers<Pick<typeof apiRoutes, Names>> {
  return {
    history: async (c, { query }) => {
      const { rows, nextOffset } = pageOf(registry.get(pathParam(c, 'name')).metricFiles.history(), query);
      return c.json({ rows, next_offset: nextOffset });
    },
    metrics: async (c, { query }) => {
      const { metricFiles } = registry.get(pathParam(c, 'name'));
      const { name } = query;
      const all = [...metricFiles.history(), ...metricFiles.timings()].filter((row) => typeof row[name] === 'number');
      const { rows, nextOffset } = pageOf(all, query);
      const points = rows.map((row) => ({
        step: Number(row.step),
        split: String(row.split),
        value: row[name] as number,
      }));
      return c.json({ name, points, next_offset: nextOffset });
    },
    metricNames: async (c) => {
      const { metricFiles } = registry.get(pathParam(c, 'name'));
      const names = new Set<string>();
      for (const row of [...metricFiles.history(), ...metricFiles.timings()]) {
        for (const [name, value] of Object.entries(row)) if (typeof value === 'number') names.add(name);
      }
      return c.json({ names: [...names].filter((name) => name !== 'step' && name !== 'training_step').sort() });
    },
    listTrajectories: async (c, { query }) => {
      const { directory } = registry.get(pathParam(c, 'name'));
      return c.json({ files: await listTrajectories(directory, query) });
    },
    trajectories: async (c) => {
      const { directory } = registry.get(pathParam(c, 'name'));
      const [split, step] = [pathParam(c, 'split'), stepParam(c)];
      if (!splitName.safeParse(split).success) throw noTrajectories(split, step);
      const path = trajectoryPath({ directory, split, step });
      const file = await stat(path).catch((error: unknown) => {
        throw isMissing(error) ? noTrajectories(split, step) : error;
      });
      const body = Readable.toWeb(createReadStream(path)) as ReadableStream<Uint8Array>;
      return c.body(body, 200, { 'content-type': 'application/jsonl', 'content-length': String(file.size) });
    },
  };
}

/** Rows of a split and of steps, a page of them. */
function pageOf(
  all: readonly MetricRow[],
  { split, from, to, offset = 0, limit = maxRows }: HistoryQuery,
): { readonly rows: MetricRow[]; readonly nextOffset: number | null } {
  const wanted = all.filter((row) => isWanted(String(row.split), Number(row.step), { split, from, to }));
  const rows = wanted.slice(offset, offset + limit);
  return { rows, nextOffset: offset + rows.length < wanted.length && rows.length > 0 ? offset + rows.length : null };
}

interface Selection {
  readonly split?: string | undefined;
  readonly from?: number | undefined;
  readonly to?: number | undefined;
}

function isWanted(split: string, step: number, wanted: Selection): boolean {
  const { from = 0, to = Number.POSITIVE_INFINITY } = wanted;
  return (wanted.split === undefined || wanted.split === split) && step >= from && step <= to;
}

async function listTrajectories(
  directory: string,
  selection: Selection,
): Promise<{ split: string; step: number; bytes: number }[]> {
  const folder = join(directory, 'trajectories');
  const files: { split: string; step: number; bytes: number }[] = [];
  for (const split of await namesOf(folder)) {
    for (const name of await namesOf(join(folder, split))) {
      const step = Number(/^(\d{4,})\.jsonl$/.exec(name)?.[1] ?? Number.NaN);
      if (!isWanted(split, step, selection)) continue;
      files.push({ split, step, bytes: (await stat(join(folder, split, name))).size });
    }
  }
  return files.sort((a, b) => (a.split === b.split ? a.step - b.step : a.split < b.split ? -1 : 1));
}

async function namesOf(folder: string): Promise<string[]> {
  return readdir(folder).catch((error: unknown) => {
    if (isMissing(error)) return [];
    throw error;
  });
}

function noTrajectories(split: string, step: number): Error {
  return refuse(
    404,
    'not_found',
    `trajectories: must be of a split and step that is stored, got ${split.slice(0, 40)}, ${step}`,
  );
}
