import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { createScriptedModel, type ScriptedModel } from '../testing-model.ts';
import { createTokenTexts, ReplyText } from './token-texts.ts';

let model: ScriptedModel;

beforeAll(async () => {
  model = await createScriptedModel(() => () => ({ tokenIds: [] }));
});

function read(parts: readonly (readonly number[])[], stopStrings: readonly string[]): string {
  const reply = new ReplyText({ tokenizer: model.tokenizer, stopStrings, endOfTurnIds: [] });
  return parts.map((ids) => reply.push(ids)).join('') + reply.flush();
}

test('however the tokens come, the text is the one before the first stop string', () => {
  const text = fc.string({ unit: fc.constantFrom('a', 'b', 'c', 'é', '🙂'), maxLength: 20 });
  const stops = fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'é'), minLength: 1, maxLength: 3 }), {
    maxLength: 3,
  });
  fc.assert(
    fc.property(text, stops, (content, stopStrings) => {
      const ids = model.tokenizer.encode(content);
      const found = stopStrings.map((stop) => content.indexOf(stop)).filter((index) => index >= 0);
      const expected = found.length === 0 ? content : content.slice(0, Math.min(...found));
      expect(read([ids], stopStrings)).toBe(expected);
      // Token by token the stop string that is complete first wins, as in the engine; with one stop string both agree.
      if (stopStrings.length < 2)
        expect(
          read(
            ids.map((id) => [id]),
            stopStrings,
          ),
        ).toBe(expected);
    }),
    { seed: 1 },
  );
});

test('special tokens are not part of the text', () => {
  expect(read([model.tokenizer.encode('a<|im_start|>b<|im_end|>')], [])).toBe('ab');
});

test('an impossible alternative is −9999, as in OpenAI', () => {
  const [id = 0] = model.tokenizer.encode('a');
  const topLogprobs = [[{ tokenId: id, logprob: Number.NEGATIVE_INFINITY }]];
  const { content } = createTokenTexts(model.tokenizer).createLogprobs({ tokenIds: [id], logprobs: [-1], topLogprobs });
  expect(content[0]?.top_logprobs[0]?.logprob).toBe(-9999);
});
