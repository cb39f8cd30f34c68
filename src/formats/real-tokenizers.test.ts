/** Tokenizers and chat templates of real models, where `npm run fetch-models` has put them; each test says so when it is skipped. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cachedTokenizer, type RealTokenizer, realTokenizers } from '../../scripts/tokenizer-cache.mjs';
import { createChatTemplate, type TemplateMessage, type TemplateOptions } from './chat-template.ts';
import { loadTokenizer } from './tokenizer.ts';

interface RealTemplate {
  readonly model: string;
  readonly tokens: Readonly<Record<string, string>>;
  readonly cases: readonly {
    readonly conversation: string;
    readonly options: string;
    readonly sha256?: string;
    readonly characters?: number;
  }[];
}

interface Conversations {
  readonly conversations: Readonly<Record<string, readonly TemplateMessage[]>>;
  readonly options: Readonly<Record<string, TemplateOptions & { readonly add_generation_prompt?: boolean }>>;
}

const read = (path: string): unknown =>
  JSON.parse(readFileSync(new URL(`../../test/fixtures/${path}`, import.meta.url), 'utf8'));
const { texts } = read('tokenizers/expected.json') as { readonly texts: readonly string[] };
const { models: tokenizers } = read('tokenizers/real.json') as {
  readonly models: readonly { readonly model: string; readonly sha256: string; readonly digests: readonly string[] }[];
};
const { conversations, options } = read('templates/expected.json') as Conversations;
const { now, models: templates } = read('templates/real.json') as {
  readonly now: string;
  readonly models: readonly RealTemplate[];
};

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
/** As Python's json.dumps writes it. */
const toAscii = (value: unknown): string =>
  JSON.stringify(value).replace(/[\x7f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);

for (const name of Object.keys(realTokenizers) as RealTokenizer[]) {
  const folder = cachedTokenizer(name);
  const note = folder === null ? ' (not in the model cache: npm run fetch-models)' : '';
  describe.skipIf(folder === null)(`${realTokenizers[name].title}${note}`, () => {
    test('ids and texts are those of Rust', async () => {
      const real = tokenizers.find(({ model }) => model === name);
      expect(real?.sha256).toBe(realTokenizers[name].files['tokenizer.json']);
      const tokenizer = await loadTokenizer(folder as string);
      const digests = texts.map((text) => {
        const ids = tokenizer.encode(text);
        const added = tokenizer.encode(text, { isTemplateAdded: true });
        const decoded = tokenizer.decode(ids);
        const skipped = tokenizer.decode(added, { skipSpecial: true });
        const value = {
          ids,
          ...(added.join() === ids.join() ? {} : { added }),
          ...(decoded === text ? {} : { text: decoded }),
          ...(skipped === decoded ? {} : { skipped }),
        };
        return sha256(toAscii(value)).slice(0, 16);
      });
      expect(texts.filter((_, index) => digests[index] !== real?.digests[index])).toEqual([]);
    }, 30_000);

    const template = templates.find(({ model }) => model === name);
    test.skipIf(template === undefined)('its chat template renders as in transformers', () => {
      const { tokens, cases } = template as RealTemplate;
      const config = JSON.parse(readFileSync(join(folder as string, 'tokenizer_config.json'), 'utf8')) as object;
      const { render } = createChatTemplate({ ...config, ...tokens });
      for (const one of cases) {
        const { add_generation_prompt: addGenerationPrompt = false, ...more } = options[one.options] ?? {};
        const messages = conversations[one.conversation] ?? [];
        const renderCase = (): string => render({ ...more, messages, addGenerationPrompt, now: new Date(now) });
        const what = `${one.conversation}, ${one.options}`;
        if (one.sha256 === undefined) expect(renderCase, what).toThrow('chat template: ');
        else expect(sha256(renderCase()), what).toBe(one.sha256);
      }
    });
  });
}
