import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { trace } from '@opentelemetry/api';
import { afterEach, expect, test, vi } from 'vitest';
import { createStoragePolicy } from '../server/security/storage-policy.ts';
import { createLogger, startTracing } from './telemetry.ts';

afterEach(() => {
  vi.unstubAllEnvs();
  trace.disable();
});

test('without an endpoint nothing is started', async () => {
  expect(await startTracing({})).toBeNull();
  expect(
    await startTracing({ OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1', OTEL_SDK_DISABLED: 'true' }),
  ).toBeNull();
});

test('spans reach the OTLP endpoint that the environment names', async () => {
  const paths: string[] = [];
  let bytes = 0;
  const collector = createServer((request, response) => {
    paths.push(request.url ?? '');
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    request.on('end', () => response.writeHead(200, { 'content-type': 'application/json' }).end('{}'));
  }).listen(0, '127.0.0.1');
  await once(collector, 'listening');
  vi.stubEnv('OTEL_EXPORTER_OTLP_ENDPOINT', `http://127.0.0.1:${(collector.address() as AddressInfo).port}`);
  const tracing = await startTracing();
  trace.getTracer('test').startSpan('chat m').end();
  await tracing?.close();
  collector.close();
  collector.closeAllConnections();
  expect(paths).toEqual(['/v1/traces']);
  expect(bytes).toBeGreaterThan(0);
});

test('what is redacted where it is stored is redacted in the log too, in errors as well', () => {
  const lines: string[] = [];
  const logger = createLogger('info', createStoragePolicy({ redact: true }).redact, {
    write: (line) => lines.push(line),
  });
  logger.info({ path: '/v1/models/jane@mail.example' }, 'request');
  logger.error(new Error('got jane@mail.example'));
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { path: '[redacted:email]', msg: 'request' },
    { err: { type: 'Error', message: 'got [redacted:email]' } },
  ]);
  expect(lines.join('')).not.toContain('jane');
});
