/** Trackers against the programs themselves; run by `npm run test:trackers`. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { Trajectory, TrajectoryGroup } from '../../src/core/trajectory.ts';
import { ModelTrackers } from '../../src/sdk/model-trackers.ts';
import { mlflowTracker } from '../../src/trackers/mlflow.ts';
import { otelTracker } from '../../src/trackers/otel.ts';
import { tensorBoardTracker } from '../../src/trackers/tensorboard.ts';
import { startLocalServer } from './local-server.ts';
import { python, runPython, startMlflow } from './python.ts';

const root = mkdtempSync(join(tmpdir(), 'art-tracker-programs-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const run = { project: 'demo', name: 'agent-1' };
const config = { baseModel: './tiny', lora: { rank: 8, alpha: 16 }, seed: 1 };

function logRun(trackers: ModelTrackers, fromStep: number): void {
  for (let step = fromStep; step < fromStep + 3; step++) {
    trackers.logRow({ step, split: 'train', metrics: { 'train/reward': step / 4, 'loss/kl': Number.NaN } });
  }
  trackers.logRow({ step: fromStep - 1, split: 'val', metrics: { 'val/reward': 0.75 } }); // an evaluation that came late
}

const readTensorBoard = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
scalars = {tag: [[e.step, str(e.value)] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
texts = {tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
print(json.dumps({"scalars": scalars, "texts": texts}))
`;

const parseOtlp = `
import base64, json, sys
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
def to_base64(value):
    # OTLP's JSON has ids in hexadecimal where protobuf's own has base64.
    if isinstance(value, list): return [to_base64(item) for item in value]
    if not isinstance(value, dict): return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ids else to_base64(v) for k, v in value.items()}
gauges, spans = {}, []
for body in json.loads(sys.argv[1]):
    for resource in ParseDict(body, ExportMetricsServiceRequest()).resource_metrics:
        for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
            gauges.setdefault(metric.name, []).extend([p.time_unix_nano, p.as_double] for p in metric.gauge.data_points)
for body in json.loads(sys.argv[2]):
    for resource in ParseDict(to_base64(body), ExportTraceServiceRequest()).resource_spans:
        for span in (s for scope in resource.scope_spans for s in scope.spans):
            values = [{a.key: a.value for a in event.attributes} for event in span.events]
            events = [[v["gen_ai.evaluation.name"].string_value, v["gen_ai.evaluation.score.value"].double_value] for v in values]
            spans.append({"name": span.name, "parent": span.parent_span_id.hex(), "events": events})
print(json.dumps({"gauges": gauges, "spans": spans}))
`;

const readMlflow = `
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("demo")
runs = client.search_runs([experiment.experiment_id])
def history(run, key):
    return [[m.step, str(m.value)] for m in client.get_metric_history(run.info.run_id, key)]
def artifacts(run):
    return [a.path for folder in ("trajectories/train",) for a in client.list_artifacts(run.info.run_id, folder)]
print(json.dumps([{
    "name": r.info.run_name, "status": r.info.status, "params": r.data.params,
    "metrics": {key: history(r, key) for key in r.data.metrics}, "artifacts": artifacts(r),
} for r in runs]))
`;

describe.skipIf(python === undefined)('programs (npm run test:trackers)', () => {
  test('TensorBoard reads the files, of a run that went on too', async () => {
    const directory = join(root, 'tensorboard');
    for (const step of [1, 4]) {
      const trackers = new ModelTrackers([tensorBoardTracker({ directory })], run, config);
      logRun(trackers, step);
      await trackers.close();
    }
    const found = (await runPython(readTensorBoard, join(directory, 'demo', 'agent-1'))) as {
      scalars: Record<string, [number, string][]>;
      texts: Record<string, string[]>;
    };
    const rewards = [1, 2, 3, 4, 5, 6].map((step) => [step, String(step / 4).replace(/^(\d)$/, '$1.0')]);
    expect(found.scalars['train/reward']).toEqual(rewards);
    expect(found.scalars['loss/kl']?.every(([, value]) => value === 'nan')).toBe(true);
    expect(found.scalars['val/reward']).toEqual([
      [0, '0.75'],
      [3, '0.75'],
    ]);
    expect(JSON.parse(found.texts.config![0]!)).toEqual(config);
  });

  test("OpenTelemetry's own definitions parse what is sent, field by field", async () => {
    await using server = await startLocalServer(() => ({ body: {} }));
    const tracker = otelTracker({ endpoint: server.url, texts: true, onWarning: () => {} });
    const trackers = new ModelTrackers([tracker], run, config);
    const trajectory = new Trajectory({
      messagesAndChoices: [
        { role: 'user', content: 'Hello' },
        { index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'Hi' } },
      ],
      reward: 0.5,
    });
    logRun(trackers, 1);
    trackers.logRow({ step: 1, split: 'train', metrics: {}, groups: [new TrajectoryGroup([trajectory])] });
    await trackers.close();
    const bodies = (path: string): string =>
      JSON.stringify(server.requests.filter((request) => request.path === path).map(({ body }) => body));
    const found = (await runPython(parseOtlp, bodies('/v1/metrics'), bodies('/v1/traces'))) as {
      gauges: Record<string, [number, number][]>;
      spans: { name: string; parent: string; events: [string, number][] }[];
    };
    expect(found.gauges['train/reward']?.map(([, value]) => value)).toEqual([0.25, 0.5, 0.75]);
    expect(found.gauges.training_step?.map(([, value]) => value)).toEqual([1, 2, 3, 0]);
    expect(Object.keys(found.gauges)).not.toContain('loss/kl');
    expect(found.spans).toEqual([
      { name: 'invoke_agent agent-1', parent: '', events: [['reward', 0.5]] },
      { name: 'chat agent-1', parent: expect.stringMatching(/^[0-9a-f]{16}$/), events: [] },
    ]);
  });

  test('MLflow keeps one run over a restart, its parameters, and every row once', { timeout: 240_000 }, async () => {
    await using server = await startMlflow(root);
    for (const step of [1, 4]) {
      const tracker = mlflowTracker({ baseURL: server.url, texts: true });
      const trackers = new ModelTrackers([tracker], run, config);
      logRun(trackers, step);
      const trajectory = new Trajectory({ messagesAndChoices: [{ role: 'user', content: 'Hello' }], reward: 1 });
      const groups = [new TrajectoryGroup([trajectory])];
      trackers.logRow({ step: step + 2, split: 'train', metrics: {}, groups });
      trackers.updateConfig({ tags: ['a'] });
      const [health] = await trackers.close({ timeoutMs: 60_000 });
      expect(health).toMatchObject({ sent: 5, dropped: 0, lastError: null });
    }
    const runs = (await runPython(readMlflow, server.url)) as Record<string, unknown>[];
    expect(runs).toEqual([
      {
        name: 'agent-1',
        status: 'FINISHED',
        params: { baseModel: './tiny', 'lora.rank': '8', 'lora.alpha': '16', seed: '1', tags: '["a"]' },
        metrics: {
          'train/reward': [1, 2, 3, 4, 5, 6].map((step) => [step, String(step / 4).replace(/^(\d)$/, '$1.0')]),
          'loss/kl': [1, 2, 3, 4, 5, 6].map((step) => [step, 'nan']),
          'val/reward': [
            [0, '0.75'],
            [3, '0.75'],
          ],
        },
        artifacts: [
          expect.stringMatching(/^trajectories\/train\/3-\d+\.jsonl$/),
          expect.stringMatching(/\/6-\d+\.jsonl$/),
        ],
      },
    ]);
    // A batch whose answer was lost is sent again as it was.
    const metrics = [{ key: 'twice', value: 1, timestamp: 1000, step: 1 }];
    const search = await post(`${server.url}/api/2.0/mlflow/runs/search`, { experiment_ids: ['1'] });
    const runId = (search.runs as { info: { run_id: string } }[])[0]!.info.run_id;
    for (let i = 0; i < 2; i++) await post(`${server.url}/api/2.0/mlflow/runs/log-batch`, { run_id: runId, metrics });
    const history = await fetch(
      `${server.url}/api/2.0/mlflow/metrics/get-history?run_id=${runId}&metric_key=twice`,
    ).then((response) => response.json() as Promise<{ metrics: unknown[] }>);
    expect(history.metrics).toHaveLength(1);
  });
});

async function post(url: string, body: object): Promise<Record<string, unknown>> {
  const headers = { 'content-type': 'application/json' };
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  expect(response.status).toBe(200);
  return response.json() as Promise<Record<string, unknown>>;
}
