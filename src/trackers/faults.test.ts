/** Trackers that misbehave: whatever they do, rows are taken at once, memory is bounded, keys are not shown, and what is lost is counted. */
import { afterEach, describe, expect, test } from 'vitest';
import { type Fault, type LocalServer, startLocalServer } from '../../test/trackers/local-server.ts';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import { ModelTrackers } from '../sdk/model-trackers.ts';
import type { Tracker } from '../sdk/tracker.ts';
import type { TrackerOptions } from '../sdk/tracker-queue.ts';
import { langfuseTracker } from './langfuse.ts';
import { mlflowTracker } from './mlflow.ts';
import { openPipeTracker } from './openpipe.ts';
import { otelTracker } from './otel.ts';
import { wandbTracker } from './wandb.ts';
import { weaveTracker } from './weave.ts';

const apiKey = 'key-that-nobody-may-see';
const hidden = [
  apiKey,
  Buffer.from(`api:${apiKey}`).toString('base64'),
  Buffer.from(`pk:${apiKey}`).toString('base64'),
];

const trackers: Readonly<Record<string, (url: string, limits: TrackerOptions) => Tracker>> = {
  wandb: (baseURL, limits) => wandbTracker({ apiKey, baseURL, entity: 'me', ...limits }),
  mlflow: (baseURL, limits) => mlflowTracker({ token: apiKey, baseURL, ...limits }),
  langfuse: (baseURL, limits) => langfuseTracker({ publicKey: 'pk', secretKey: apiKey, baseURL, ...limits }),
  weave: (baseURL, limits) => weaveTracker({ apiKey, baseURL, entity: 'me', ...limits }),
  openpipe: (baseURL, limits) => openPipeTracker({ apiKey, baseURL, texts: true, ...limits }),
  otel: (endpoint, limits) => otelTracker({ endpoint, headers: { authorization: `Bearer ${apiKey}` }, ...limits }),
};

const server: LocalServer = await startLocalServer(() => ({ body: {} }));
afterEach(() => {
  server.fault = undefined;
});

const groups = [
  new TrajectoryGroup([
    new Trajectory({
      messagesAndChoices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'Hi' } }],
      reward: 1,
    }),
  ]),
];

/** A port that nobody listens on any more. */
async function closedPort(): Promise<string> {
  await using gone = await startLocalServer(() => ({}));
  return gone.url;
}

describe.each(Object.keys(trackers))('%s', (name) => {
  test.each<Fault | 'down'>(['down', 'hang', 'cut', 'nonsense', 'redirect', 500, 429, 401])(
    'that answers with %s stops nothing',
    { timeout: 30_000 },
    async (fault) => {
      // Its exporter reads no answer but the status.
      if (fault === 'nonsense' && name === 'otel') return;
      const url = fault === 'down' ? await closedPort() : server.url;
      if (fault !== 'down') server.fault = fault;
      const warnings: string[] = [];
      const limits = {
        timeoutMs: 100,
        retryDelayMs: 1,
        maxRetryDelayMs: 2,
        maxQueuedRows: 5,
        maxQueuedTrajectories: 2,
        onWarning: (message: string) => void warnings.push(message),
      };
      const tracker = trackers[name]!(url, limits);
      const model = new ModelTrackers([tracker], { project: 'demo', name: 'agent' }, { seed: 1 });
      // Logging returns nothing to wait for, and a thousand rows leave no more behind than the bounds.
      for (let step = 0; step < 1000; step++) {
        expect(model.logRow({ step, split: 'train', metrics: { 'train/reward': step }, groups })).toBeUndefined();
      }
      const kinds = tracker.trajectories === 'none' ? 1 : 2;
      const queued = kinds === 1 ? 5 : 7;
      expect(tracker.health()).toMatchObject({ sent: 0, queued, dropped: 1000 * kinds - queued });
      await expect.poll(() => tracker.health().lastError, { timeout: 10_000 }).not.toBeNull();
      const health = await tracker.close({ timeoutMs: 1 });
      expect(health.sent + health.dropped).toBe(1000 * kinds);
      expect(health.queued).toBe(0);
      const shown = JSON.stringify([warnings, health]);
      for (const secret of hidden) expect(shown).not.toContain(secret);
      expect(warnings.length).toBeLessThanOrEqual(6);
      expect(warnings.every((warning) => warning.startsWith(`tracker ${name}: `))).toBe(true);
    },
  );
});
