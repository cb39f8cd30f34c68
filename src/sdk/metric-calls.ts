/** Metrics over the steps and the list of models through the training API. Layer 5. */
import { refuseUnknownKeys } from '../core/options.ts';
import { type MetricSeries, metricNames, metricSeries } from '../wire/data.ts';
import { modelList } from '../wire/training.ts';
import { fromModelInfo } from '../wire/training-names.ts';
import type { ModelSummary } from './backend.ts';
import { type Api, type CallOptions, modelPath } from './call.ts';

/** A value of a metric at a step; a step that was evaluated several times has several. */
export interface MetricPoint {
  readonly step: number;
  readonly split: string;
  readonly value: number;
}

export interface MetricOptions extends CallOptions {
  /** Default all. */
  readonly split?: string | undefined;
  /** First and last step; default all. */
  readonly from?: number | undefined;
  readonly to?: number | undefined;
}

export async function callMetric(
  api: Api,
  name: string,
  metric: string,
  options: MetricOptions,
): Promise<MetricPoint[]> {
  refuseUnknownKeys('getMetric', options, ['split', 'from', 'to', 'signal']);
  const { signal, ...range } = options;
  const points: MetricPoint[] = [];
  // The server tells a bounded number of points at a time.
  for (let offset: number | null = 0; offset !== null; ) {
    const query = new URLSearchParams({ name: metric, offset: String(offset) });
    for (const [key, value] of Object.entries(range)) if (value !== undefined) query.set(key, String(value));
    const path = `${modelPath(name)}/metrics?${query}`;
    const call = { what: `metric ${metric} of model ${name}`, method: 'GET', path, signal } as const;
    const page: MetricSeries = await api.sendIdempotent(call, metricSeries);
    points.push(...page.points);
    offset = page.next_offset;
  }
  return points;
}

export async function callMetricNames(api: Api, name: string, { signal }: CallOptions): Promise<string[]> {
  const path = `${modelPath(name)}/metric-names`;
  const call = { what: `names of metrics of model ${name}`, method: 'GET', path, signal } as const;
  return (await api.sendIdempotent(call, metricNames)).names;
}

export async function callListModels(api: Api, { signal }: CallOptions): Promise<ModelSummary[]> {
  const call = { what: 'list of models', method: 'GET', path: '/api/models', signal } as const;
  const { models } = await api.sendIdempotent(call, modelList);
  return models.map((info) => ({
    name: info.name,
    project: info.project,
    baseModel: info.base_model,
    ...fromModelInfo(info),
  }));
}
