/** ART #366: pages showed functions that never existed. Here every name that a page imports from the package is there (and test/docs runs it). */
import { expect, test } from 'vitest';
import { pages, readExamples } from '../docs/documentation.ts';

const names = pages.flatMap((page) =>
  readExamples(page).flatMap(({ code, place }) =>
    [...code.matchAll(/import \{([^}]*)\} from '(agent-reinforcement-trainer[^']*)'/g)].flatMap(
      ([, list = '', entry = '']) =>
        list
          .split(',')
          .map((name) => name.trim().replace(/ as .*/, ''))
          .filter((name) => name !== '' && !name.startsWith('type '))
          .map((name) => ({ place, entry, name })),
    ),
  ),
);

test('what the pages import from the package is what it exports', { timeout: 60_000 }, async () => {
  expect(names.length).toBeGreaterThan(5);
  const missing: string[] = [];
  for (const { place, entry, name } of names) {
    const module: object = await import(entry);
    if (!(name in module)) missing.push(`${place}: ${name} of ${entry}`);
  }
  expect(missing).toEqual([]);
});
