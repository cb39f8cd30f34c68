/** What one key sampled is continued by that key alone, whatever protocol it speaks. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { createApp } from '../app.ts';
import { byteIds, createScriptedModel } from '../testing-model.ts';
import { createKey, openKeys } from './keys.ts';
import { createSecurity } from './security.ts';

const user = (content: string): unknown => ({ role: 'user', content });
const left = { role: 'assistant', content: 'left' };
const protocols: readonly (readonly [path: string, bodyOf: (messages: readonly unknown[]) => object])[] = [
  ['/v1/chat/completions', (messages) => ({ messages })],
  ['/v1/responses', (messages) => ({ input: messages })],
  ['/v1/messages', (messages) => ({ messages, max_tokens: 8 })],
  ['/rollouts/r1/v1/chat/completions', (messages) => ({ messages })],
];

test.each(protocols)(
  '%s: ids of another key are not continued, and its text is rendered anew',
  async (path, bodyOf) => {
    const root = await mkdtemp(join(tmpdir(), 'art-key-isolation-'));
    onTestFinished(() => rm(root, { recursive: true }));
    const prompts: (readonly number[])[] = [];
    // Ids that the tokenizer would not write for that text: whoever has them in the prompt has them from the sampled turn.
    const model = await createScriptedModel((tokenizer) => ({ promptIds }) => {
      prompts.push(promptIds);
      return { tokenIds: [...byteIds(tokenizer, 'left'), ...tokenizer.encode('<|im_end|>')] };
    });
    const [own, other] = await Promise.all(
      ['own', 'other'].map(async (name) => (await createKey(root, { name, scopes: ['infer'] })).key),
    );
    const security = createSecurity({ keys: await openKeys(root, () => {}) });
    const app = createApp({ models: () => [model], findModel: () => model, security });
    const ask = async (key: string | undefined, messages: readonly unknown[]): Promise<readonly number[]> => {
      const headers = { 'content-type': 'application/json', 'x-api-key': key! };
      const body = JSON.stringify({ model: 'm', ...bodyOf(messages) });
      const response = await app.request(path, { method: 'POST', headers, body });
      expect(response.status, await response.clone().text()).toBe(200);
      return prompts.at(-1)!;
    };
    const first = await ask(own, [user('hello')]);
    const sampled = [...first, ...byteIds(model.tokenizer, 'left')];
    const written = [...first, ...model.tokenizer.encode('left')];
    const history = [user('hello'), left, user('world')];
    expect((await ask(own, history)).slice(0, sampled.length)).toEqual(sampled);
    expect((await ask(other, history)).slice(0, written.length)).toEqual(written);
  },
);
