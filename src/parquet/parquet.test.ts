import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { parquetReadObjects } from 'hyparquet';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { afterAll, describe, expect, test } from 'vitest';
import { Trajectory, TrajectoryGroup } from '../core/trajectory.ts';
import {
  loadTrajectories,
  type Row,
  readTrajectories,
  toRows,
  toTrajectoryGroups,
  writeTrajectories,
} from './index.ts';

const folder = mkdtempSync(join(tmpdir(), 'art-parquet-'));
afterAll(() => rmSync(folder, { recursive: true }));
const place = { model: 'agent', split: 'train', step: 3 };

const user = { role: 'user', content: 'Zürich? 🎲 \u0000 \ud800' } as const;
const call = { id: 'a', type: 'function', function: { name: 'roll', arguments: '{"sides": 6}' } };
const choice = {
  index: 1,
  finish_reason: 'tool_calls',
  message: { role: 'assistant', content: null, tool_calls: [call], reasoning_content: 'hm' },
  art: { completion_id: 'chatcmpl-1', policy_step: 2 },
  logprobs: { content: [{ token: 'x', logprob: -0.1 }] },
};
const tool = { type: 'function', function: { name: 'roll', parameters: { type: 'object' } } };

function createGroups(): TrajectoryGroup[] {
  const first = new Trajectory({
    messagesAndChoices: [user, choice, { role: 'tool', tool_call_id: 'a', content: '4' }],
    tools: [tool],
    additionalHistories: [{ messagesAndChoices: [user, choice] }, { messagesAndChoices: [user], tools: [] }],
    reward: 0.1 + 0.2,
    turnRewards: [0, 1e-300],
    metrics: { moves: 3, win: true, duration: 1.25 },
    metadata: { opponent: 'random', seed: 2 ** 40, note: null, mixed: 1 },
    logs: ['a\nb', ''],
  });
  const second = new Trajectory({ messagesAndChoices: [user], reward: -1, metadata: { mixed: 'x' } });
  const exceptions = [{ type: 'TypeError', message: 'no "move"' }];
  return [
    new TrajectoryGroup([first, second], {
      exceptions,
      metrics: { spread: 2 },
      metadata: { scenario: 7 },
      logs: ['g'],
    }),
    new TrajectoryGroup([], { exceptions }),
  ];
}

/** What a group is, as plain data; the time of its making is not part of it. */
const plain = (groups: readonly TrajectoryGroup[]): unknown => JSON.parse(JSON.stringify(groups));

describe('a Parquet file', () => {
  test('gives back every field of every group', async () => {
    const file = join(folder, 'groups.parquet');
    const groups = createGroups();
    await writeTrajectories(file, toRows(groups, place));
    const rows = await readTrajectories(file);
    expect(plain(toTrajectoryGroups(rows))).toEqual(plain(groups));
    expect(rows).toEqual(toRows(groups, place));
    expect(readdirSync(folder)).toEqual(['groups.parquet']);
  });

  test('gives back whatever a trajectory may hold', async () => {
    const file = join(folder, 'any.parquet');
    const text = fc.string({ unit: 'binary', maxLength: 12 });
    const number = fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => value + 0);
    const record = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<Record<string, T>> =>
      fc.dictionary(fc.string({ maxLength: 5 }), value, { maxKeys: 4, noNullPrototype: true });
    const message = fc.record({ role: fc.constant('user' as const), content: fc.oneof(text, fc.constant(null)) });
    const trajectory = fc.record({
      messagesAndChoices: fc.array(fc.oneof(message, fc.constant(choice)), { maxLength: 3 }),
      reward: number,
      turnRewards: fc.array(number, { maxLength: 3 }),
      metrics: record(fc.oneof(number, fc.boolean())),
      metadata: record(fc.oneof(text, number, fc.boolean(), fc.constant(null))),
      logs: fc.array(text, { maxLength: 2 }),
    });
    const group = fc
      .array(trajectory, { maxLength: 3 })
      .map((list) => new TrajectoryGroup(list.map((init) => new Trajectory(init))));
    await fc.assert(
      fc.asyncProperty(fc.array(group, { maxLength: 3 }), async (groups) => {
        await writeTrajectories(file, toRows(groups, place));
        expect(plain(toTrajectoryGroups(await readTrajectories(file)))).toEqual(plain(groups));
      }),
      { seed: 1, numRuns: 100 },
    );
  });

  test('has columns that queries need: messages, metric_…, metadata_… by their types', async () => {
    const file = join(folder, 'columns.parquet');
    await writeTrajectories(file, toRows(createGroups(), place));
    const bytes = readFileSync(file);
    const [first] = await parquetReadObjects({ file: new Uint8Array(bytes).buffer });
    expect(first).toMatchObject({
      kind: 'trajectory',
      model: 'agent',
      step: 3,
      group_number: 0,
      trajectory_number: 0,
      reward: 0.1 + 0.2,
      completion_tokens: null,
      metric_moves: 3,
      metric_win: true,
      metadata_opponent: 'random',
      metadata_seed: 2 ** 40,
      metadata_mixed: '1',
    });
    expect(JSON.parse(String(first?.messages))).toEqual([
      user,
      choice.message,
      { role: 'tool', tool_call_id: 'a', content: '4' },
    ]);
  });

  test('is refused by name where it is another, cut off, or damaged', async () => {
    const file = join(folder, 'bad.parquet');
    writeFileSync(file, new Uint8Array(parquetWriteBuffer({ columnData: [{ name: 'x', data: [1], type: 'INT32' }] })));
    await expect(readTrajectories(file)).rejects.toThrow(/must hold trajectories of version 1, .* got another table$/);
    writeFileSync(file, 'PAR1 nothing');
    await expect(readTrajectories(file)).rejects.toThrow(/must be a Parquet file, got /);
    await expect(readTrajectories(join(folder, 'none.parquet'))).rejects.toThrow(/none.parquet must exist$/);
    const [row] = toRows([new TrajectoryGroup([new Trajectory({ metrics: { loss: Number.NaN } })])], place);
    await expect(writeTrajectories(file, [row!])).rejects.toThrow(/^trajectories: row 0: metrics.loss: /);
  });

  test('rows that name a trajectory twice are refused', () => {
    const rows = toRows(createGroups(), place);
    expect(() => toTrajectoryGroups([...rows, rows[0]!])).toThrow(
      'trajectories: each must stand once, got trajectory 0 twice in group 0 of agent, split train, step 3',
    );
  });
});

describe('loadTrajectories', () => {
  const path = join(folder, 'runs');
  const tokens = { policy_step: 0, temperature: 1, finish_reason: 'stop', token_ids: [5, 6], logprobs: [-1, -2] };
  const turn = { message: { role: 'assistant', content: 'yes' }, tokens };
  const stored = { reward: 1, metrics: { win: true }, metadata: {}, logs: [], entries: [{ message: user }, turn] };
  const group = { exceptions: [], metrics: {}, metadata: { scenario: 1 }, logs: [] };
  const write = async (
    model: string,
    split: string,
    name: string,
    lines: readonly unknown[],
    end = '',
  ): Promise<void> => {
    const target = join(path, 'sums', 'models', model, 'trajectories', split);
    await mkdir(target, { recursive: true });
    writeFileSync(join(target, name), lines.map((line) => `${JSON.stringify(line)}\n`).join('') + end);
  };

  test('reads models, splits and steps, and what was sampled', async () => {
    await write(
      'b',
      'val',
      '0002.jsonl',
      [
        { group: 0, trajectory: 0, ...stored },
        { group: 0, ...group },
      ],
      '{"group": 1, "tra',
    );
    await write('a', 'train', '0001.jsonl', [
      { group: 0, trajectory: 0, reward: 0, metrics: {} },
      { group: 0, exceptions: 2, metrics: {} },
    ]);
    const rows = await loadTrajectories({ path, project: 'sums' });
    expect(rows.map(({ model, split, step, kind }: Row) => [model, split, step, kind])).toEqual([
      ['a', 'train', 1, 'trajectory'],
      ['a', 'train', 1, 'group'],
      ['b', 'val', 2, 'trajectory'],
      ['b', 'val', 2, 'group'],
    ]);
    expect(rows[1]).toMatchObject({ exceptions: [{ message: 'not stored' }, { message: 'not stored' }] });
    expect(rows[2]).toMatchObject({ entries: [{ message: user }, turn], reward: 1 });
    const file = join(folder, 'run.parquet');
    await writeTrajectories(file, rows);
    expect(await readTrajectories(file)).toEqual(rows);
    const [, , onlyVal] = [
      await loadTrajectories({ path, project: 'sums', models: ['b'], from: 3 }),
      null,
      await loadTrajectories({ path, project: 'sums', splits: ['val'] }),
    ];
    expect(onlyVal).toHaveLength(2);
    const [, loaded] = toTrajectoryGroups(rows);
    expect(loaded?.trajectories[0]?.allChoices()).toEqual([{ index: 0, finish_reason: 'stop', message: turn.message }]);
  });

  test('says what is not there, and which line is none', async () => {
    await expect(loadTrajectories({ path, project: 'other' })).rejects.toThrow(/project other must have runs in /);
    await expect(loadTrajectories({ path, project: 'sums', models: ['c'] })).rejects.toThrow(/which has a, b; got c$/);
    await write('d', 'val', '0001.jsonl', [{ group: 0, trajectory: 0, reward: 'high', metrics: {} }]);
    await expect(loadTrajectories({ path, project: 'sums', models: ['d'] })).rejects.toThrow(
      /^trajectories of d, split val, step 1, line 1: reward: /,
    );
  });
});
