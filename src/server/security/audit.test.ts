import { appendFile, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { auditPath, createAuditLog, verifyAudit } from './audit.ts';

let root: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'art-audit-'));
});

afterEach(() => rm(root, { recursive: true }));

const by = { kind: 'key', id: 'k1', name: 'ci' } as const;
const read = async (): Promise<string[]> => (await readFile(auditPath(root), 'utf8')).trimEnd().split('\n');

async function appendMany(count: number): Promise<void> {
  const log = createAuditLog(root);
  await Promise.all(
    Array.from({ length: count }, (_, index) => log.append(by, { what: 'x', target: `t${index}` }, 'r1')),
  );
}

test('a line says who, what, when, before, after and which request', async () => {
  const log = createAuditLog(root, undefined, () => new Date(0));
  const change = { what: 'checkpoint.delete', target: 'p/m@1', before: { step: 1 }, after: null };
  await log.append(by, change, 'req-1');
  expect(JSON.parse((await read())[0] as string)).toEqual({
    seq: 1,
    at: '1970-01-01T00:00:00.000Z',
    who: by,
    ...change,
    request_id: 'req-1',
    prev: '0'.repeat(64),
  });
  if (process.platform !== 'win32') expect((await stat(auditPath(root))).mode & 0o777).toBe(0o600);
});

test('a line that could not be written is written before the next one, with its own time', async () => {
  let time = 0;
  const log = createAuditLog(root, undefined, () => new Date(time++));
  await log.append(by, { what: 'x', target: 'first' }, 'r1');
  const content = await readFile(auditPath(root));
  await rm(auditPath(root));
  await mkdir(auditPath(root)); // nothing can be appended to it
  const refused = ['second', 'third'].map((target) => log.append(by, { what: 'x', target }, 'r1'));
  expect((await Promise.allSettled(refused)).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  await rm(auditPath(root), { recursive: true });
  await writeFile(auditPath(root), content);
  await log.append(by, { what: 'x', target: 'fourth' }, 'r1');
  const lines = (await read()).map((line) => JSON.parse(line) as { target: string; at: string });
  expect(lines.map(({ target, at }) => [target, Date.parse(at)])).toEqual([
    ['first', 0],
    ['second', 1],
    ['third', 2],
    ['fourth', 3],
  ]);
  expect(await verifyAudit(root)).toMatchObject({ lines: 4 });
});

test('writers at the same time, as of two servers, make one chain', async () => {
  await Promise.all([appendMany(20), appendMany(20)]);
  const { lines, lastHash } = await verifyAudit(root);
  expect(lines).toBe(40);
  expect(await verifyAudit(root, lastHash)).toEqual({ lines: 40, lastHash });
});

test.each<[string, (lines: string[]) => string[], RegExp]>([
  ['changed', (lines) => lines.map((line, i) => (i === 1 ? line.replace('"t1"', '"t9"') : line)), /line 3 must carry/],
  ['removed', (lines) => lines.filter((_, i) => i !== 1), /line 2 must have seq 2, got 3/],
  ['put in', (lines) => [...lines.slice(0, 2), lines[1] as string, ...lines.slice(2)], /line 3 must have seq 3, got 2/],
  ['swapped', ([a, b, ...rest]) => [b as string, a as string, ...rest], /line 1 must have seq 1, got 2/],
  ['garbled', (lines) => lines.with(2, 'nonsense'), /line 3 must be JSON, got nonsense/],
])('a line that was %s is found', async (_name, change, problem) => {
  await appendMany(4);
  await writeFile(auditPath(root), `${change(await read()).join('\n')}\n`);
  await expect(verifyAudit(root)).rejects.toThrow(problem);
});

test('a cut end is found by the hash that was noted', async () => {
  await appendMany(3);
  const { lastHash } = await verifyAudit(root);
  await writeFile(auditPath(root), `${(await read()).slice(0, 2).join('\n')}\n`);
  expect((await verifyAudit(root)).lines).toBe(2);
  await expect(verifyAudit(root, lastHash)).rejects.toThrow(/must have a line with SHA-256/);
});

test('a line that a crash cut short is dropped, and the chain goes on', async () => {
  await appendMany(2);
  await appendFile(auditPath(root), '{"seq":3,"at":"2026');
  expect((await verifyAudit(root)).lines).toBe(2);
  await appendMany(1);
  expect((await verifyAudit(root)).lines).toBe(3);
});

test('an end that is no line of the log is not built upon', async () => {
  await writeFile(auditPath(root), 'hello\n');
  await expect(appendMany(1)).rejects.toThrow(/its last line must be a line of this log, got hello/);
});

test('a long change is a hash, and lines longer than one read are still found', async () => {
  const log = createAuditLog(root);
  await log.append(by, { what: 'x', target: 't', after: 'a'.repeat(200_000) }, null);
  await log.append(by, { what: 'x', target: 't'.repeat(60_000) }, null);
  await log.append(by, { what: 'x', target: 't' }, null);
  expect((await verifyAudit(root)).lines).toBe(3);
  expect(JSON.parse((await read())[0] as string).after).toEqual({ sha256: expect.stringMatching(/^[0-9a-f]{64}$/) });
});

test('every text is redacted before it is written', async () => {
  const redact = (value: unknown): unknown => JSON.parse(JSON.stringify(value).replaceAll('secret', '[x]'));
  await createAuditLog(root, redact).append(by, { what: 'x', target: 'secret', after: { a: ['secret'] } }, null);
  expect(await readFile(auditPath(root), 'utf8')).not.toContain('secret');
});

test('an empty log is whole', async () => {
  expect(await verifyAudit(root)).toEqual({ lines: 0, lastHash: '0'.repeat(64) });
});
