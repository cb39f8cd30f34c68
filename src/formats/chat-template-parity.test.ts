import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { createChatTemplate, type TemplateMessage, type TemplateOptions } from './chat-template.ts';
import { compileJinja } from './jinja.ts';
import { Float } from './jinja-values.ts';

interface Case {
  readonly conversation: string;
  readonly options: string;
  readonly text?: string;
  readonly error?: string;
}

interface Expected {
  readonly conversations: Readonly<Record<string, readonly TemplateMessage[]>>;
  readonly options: Readonly<Record<string, TemplateOptions & { readonly add_generation_prompt?: boolean }>>;
  readonly tokens: Readonly<Record<string, string>>;
  readonly people: readonly object[];
  readonly now: string;
  readonly features: { readonly text: string };
  /** `f` is the text of a float. */
  readonly variables: readonly (Readonly<Record<string, unknown>> & { readonly f: string })[];
  /** What each expression writes for each set of variables; null where it raises. */
  readonly expressions: readonly { readonly expression: string; readonly written: readonly (string | null)[] }[];
  readonly cases: readonly (Case & { readonly template: string })[];
}

const folder = new URL('../../test/fixtures/templates/', import.meta.url);
const read = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
const expected = JSON.parse(read('expected.json')) as Expected;
const files = readdirSync(folder).filter((name) => name.endsWith('.jinja'));
const now = new Date(expected.now);

const open = (name: string) => createChatTemplate({ ...expected.tokens, chat_template: read(name) });

describe('as transformers renders', () => {
  test.each(files.filter((name) => name !== 'features.jinja'))('%s', (name) => {
    const template = open(name);
    const cases = expected.cases.filter((one) => one.template === name);
    expect(cases.length).toBeGreaterThan(50);
    for (const one of cases) {
      const { add_generation_prompt: isPrompted = false, ...options } = expected.options[
        one.options
      ] as Expected['options'][string];
      const render = () =>
        template.render({
          ...options,
          messages: expected.conversations[one.conversation] ?? [],
          addGenerationPrompt: isPrompted,
          now,
        });
      const what = `${one.conversation}, ${one.options}`;
      if (one.text !== undefined) expect(render(), what).toBe(one.text);
      else expect(render, what).toThrow(DataError);
      if (one.error?.includes('!') || one.error?.includes('...')) expect(render, what).toThrow(one.error);
    }
  });

  test('features of the language', () => {
    const messages = [{ role: 'user', content: 'x' }];
    const extra = { people: expected.people, now: 'now' };
    expect(open('features.jinja').render({ messages, addGenerationPrompt: false, extra, now })).toBe(
      expected.features.text,
    );
  });

  test('expressions: methods, filters and tests of texts and numbers', () => {
    expect(expected.expressions.length).toBeGreaterThan(100);
    for (const { expression, written } of expected.expressions) {
      const render = compileJinja(`{{ ${expression} }}`);
      for (const [index, variables] of expected.variables.entries()) {
        const values = { ...variables, f: new Float(Number(variables.f)) };
        const what = `${expression} of ${JSON.stringify(variables)}`;
        const text = written[index] as string | null;
        if (text === null) expect(() => render(values), what).toThrow(DataError);
        else expect(render(values), what).toBe(text);
      }
    }
  });
});
