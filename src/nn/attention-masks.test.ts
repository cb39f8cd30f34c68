import { expect, test } from 'vitest';
import { tinyConfig } from '../../test/tiny-model.ts';
import { firstVisibleKey, isSlidingLayer, layerKinds } from './attention-masks.ts';
import { createRopeFeeds } from './rope-table.ts';

const sizes = { layers: 3, slidingWindow: 4 };

test('the kinds of layers that a model has', () => {
  const mixed = tinyConfig({ ...sizes, slidingLayers: [0, 2] });
  expect([0, 1, 2].map((layer) => isSlidingLayer(mixed, layer))).toEqual([true, false, true]);
  expect(layerKinds(mixed)).toEqual(['full', 'sliding']);
  expect(layerKinds(tinyConfig({ ...sizes, slidingLayers: [0, 1, 2] }))).toEqual(['sliding']);
  expect(layerKinds(tinyConfig({ ...sizes, slidingLayers: [] }))).toEqual(['full']);
});

test('a window of 4 shows the query and the three before it', () => {
  const config = tinyConfig({ ...sizes, slidingLayers: [0] });
  expect([0, 1, 3, 4, 9].map((position) => firstVisibleKey(config, 'sliding', position))).toEqual([0, 0, 0, 1, 6]);
  expect(firstVisibleKey(config, 'full', 9)).toBe(0);
});

test('the tables that the layers read, no others', () => {
  const names = (overrides: Parameters<typeof tinyConfig>[0]): string[] =>
    Object.keys(createRopeFeeds(tinyConfig({ ...sizes, ...overrides })));
  expect(names({ slidingLayers: [0] })).toEqual(['cos', 'sin']);
  expect(names({ slidingLayers: [0, 1, 2] })).toEqual(['cos', 'sin']);
  expect(names({ slidingLayers: [0], localRopeTheta: 100 })).toEqual(['cos', 'sin', 'localCos', 'localSin']);
  expect(names({ slidingLayers: [0, 1, 2], localRopeTheta: 100 })).toEqual(['localCos', 'localSin']);
});

test('tables cover the positions and the longest packed row', () => {
  const rows = (maxPositions: number): readonly number[] => createRopeFeeds(tinyConfig({ maxPositions })).cos!.shape;
  expect(rows(20)).toEqual([128, 8]);
  expect(rows(300)).toEqual([512, 8]);
  expect(rows(1024)).toEqual([1024, 8]);
});
