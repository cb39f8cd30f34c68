import OpenAI from 'openai';
import type { CompletionCreateParamsNonStreaming } from 'openai/resources/completions';
import { afterEach, describe, expect, test } from 'vitest';
import type { ScriptedEngineOptions } from '../../testing/index.ts';
import type { CompletionChoice, CompletionResponse } from '../../wire/completions.ts';
import { createApp } from '../app.ts';
import { type RunningServer, startServer } from '../listen.ts';
import { createScriptedModel, type ScriptedModel } from '../testing-model.ts';

const servers: RunningServer[] = [];

afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.close()));
});

/** Replies in turn, each the tokens of a text; `<|im_end|>` ends one. */
async function serve(
  texts: readonly string[],
  options: Omit<ScriptedEngineOptions, 'reply' | 'decode'> = {},
): Promise<{ readonly model: ScriptedModel; readonly client: OpenAI }> {
  const model = await createScriptedModel(
    (tokenizer) => (_request, call) => ({ tokenIds: tokenizer.encode(texts[call % texts.length] as string) }),
    options,
  );
  const app = createApp({ models: () => [model], findModel: (name) => (name === model.name ? model : undefined) });
  const server = await startServer(app);
  servers.push(server);
  return { model, client: new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 }) };
}

type Request = CompletionCreateParamsNonStreaming & {
  readonly return_token_ids?: boolean;
  readonly prompt_logprobs?: number;
};

const ask: Request = { model: 'm', prompt: 'hello left' };

async function create(client: OpenAI, request: Request): Promise<CompletionResponse> {
  return (await client.completions.create(request)) as unknown as CompletionResponse;
}

describe('whole answers', () => {
  test('a text goes on without a template; the turn is kept for training', async () => {
    const { client, model } = await serve([' world<|im_end|>'], { policySteps: [3, 4] });
    const { data, response } = await client.completions.create({ ...ask, seed: 5 } as Request).withResponse();
    const sampled = model.tokenizer.encode(' world<|im_end|>');
    const promptIds = model.tokenizer.encode('hello left');
    expect(model.engine.requests[0]?.promptIds).toEqual(promptIds);
    expect(data).toMatchObject({
      object: 'text_completion',
      model: 'm',
      choices: [
        {
          index: 0,
          text: ' world',
          logprobs: null,
          finish_reason: 'stop',
          art: { completion_id: data.id, choice_index: 0, policy_step: 4, seed: 5 },
        },
      ],
      usage: { prompt_tokens: promptIds.length, completion_tokens: sampled.length },
    });
    expect(response.headers.get('x-art-policy-step')).toBe('4');
    expect(model.completions.get(data.id, 0)).toMatchObject({ promptIds, tokenIds: sampled, policyStep: 4 });
  });

  test('token ids are the prompt as they are; 16 tokens are the default', async () => {
    const { client, model } = await serve(['x'.repeat(40)]);
    const prompt = model.tokenizer.encode('left right');
    const { choices } = await create(client, { ...ask, prompt, return_token_ids: true });
    expect(model.engine.requests[0]?.promptIds).toEqual(prompt);
    expect(choices[0]).toMatchObject({ prompt_token_ids: prompt, finish_reason: 'length' });
    expect(choices[0]?.token_ids).toHaveLength(16);
  });

  test('several prompts with several choices are numbered through; each prompt has a completion of its own', async () => {
    const { client, model } = await serve(['a', 'b', 'c', 'd']);
    const lists = ['left', 'right'].map((text) => model.tokenizer.encode(text));
    for (const prompt of [['left', 'right'], lists]) {
      const { choices, id, usage } = await create(client, { ...ask, prompt, n: 2, max_tokens: 1 });
      expect(choices.map(({ index, art }) => [index, art?.completion_id, art?.choice_index])).toEqual([
        [0, `${id}-0`, 0],
        [1, `${id}-0`, 1],
        [2, `${id}-1`, 0],
        [3, `${id}-1`, 1],
      ]);
      expect(choices.map(({ text }) => text).sort()).toEqual(['a', 'b', 'c', 'd']);
      expect(usage).toMatchObject({ prompt_tokens: lists.flat().length, completion_tokens: 4 });
      expect(model.completions.get(`${id}-1`, 0)?.promptIds).toEqual(lists[1]);
    }
  });

  test('echo with logprobs tells those of the prompt too, the first token has none', async () => {
    const { client, model } = await serve([' world<|im_end|>']);
    const { choices } = await create(client, { ...ask, echo: true, logprobs: 1 });
    const ids = [...model.tokenizer.encode('hello left'), ...model.tokenizer.encode(' world<|im_end|>')];
    const tokens = ids.map((id) => model.tokenizer.tokenText(id));
    const [choice] = choices;
    expect(model.engine.requests[0]?.promptLogprobs).toBe(1);
    expect(choice?.text).toBe('hello left world');
    expect(choice?.logprobs?.tokens).toEqual(tokens);
    expect(choice?.logprobs?.token_logprobs[0]).toBeNull();
    expect(choice?.logprobs?.top_logprobs[0]).toBeNull();
    expect(choice?.logprobs?.token_logprobs.slice(1).every((logprob) => logprob === -0.5)).toBe(true);
    expect(choice?.logprobs?.top_logprobs.at(-1)).toEqual({ '<|im_end|>': -0.5 });
    const starts = tokens.map((_, index) => tokens.slice(0, index).join('').length);
    expect(choice?.logprobs?.text_offset).toEqual(starts);
  });

  test('max_tokens 0 scores a prompt and answers nothing that was sampled', async () => {
    const { client, model } = await serve(['left']);
    const request: Request = { ...ask, max_tokens: 0, echo: true, logprobs: 0, prompt_logprobs: 1 };
    const { choices, id: completionId, usage } = await create(client, { ...request, return_token_ids: true });
    const promptIds = model.tokenizer.encode('hello left');
    expect(choices[0]).toMatchObject({ text: 'hello left', token_ids: [], finish_reason: 'length' });
    expect(choices[0]?.logprobs?.tokens).toHaveLength(promptIds.length);
    const [, second] = choices[0]?.prompt_logprobs ?? [];
    const id = promptIds[1] as number;
    expect(second).toEqual({ [id]: { logprob: -0.5, rank: 1, decoded_token: model.tokenizer.tokenText(id) } });
    expect(usage?.completion_tokens).toBe(0);
    expect(model.completions.get(completionId, 0)).toBeUndefined();
  });
});

describe('streams', () => {
  async function readStream(client: OpenAI, request: Request): Promise<CompletionResponse[]> {
    const stream = await client.completions.create({ ...request, stream: true });
    const chunks: CompletionResponse[] = [];
    for await (const chunk of stream) chunks.push(chunk as unknown as CompletionResponse);
    return chunks;
  }

  test('chunks of all choices add up to the whole answer', async () => {
    const texts = [' world<|im_end|>', ' left<|im_end|>'];
    const { client } = await serve(texts);
    const request: Request = { ...ask, n: 2, echo: true, logprobs: 1, return_token_ids: true };
    const whole = await create(client, request);
    const chunks = await readStream(client, { ...request, stream_options: { include_usage: true } });
    for (const choice of whole.choices) {
      const parts = chunks.flatMap(({ choices }) => choices.filter(({ index }) => index === choice.index));
      const joined = (read: (part: CompletionChoice) => readonly unknown[] | undefined): unknown[] =>
        parts.flatMap((part) => read(part) ?? []);
      expect(joined((part) => [part.text]).join('')).toBe(choice.text);
      expect(joined((part) => part.token_ids)).toEqual(choice.token_ids);
      expect(joined((part) => part.prompt_token_ids)).toEqual(choice.prompt_token_ids);
      expect(joined((part) => part.logprobs?.tokens)).toEqual(choice.logprobs?.tokens);
      expect(joined((part) => part.logprobs?.text_offset)).toEqual(choice.logprobs?.text_offset);
      expect(parts.at(-1)).toMatchObject({ finish_reason: 'stop', art: { choice_index: choice.index } });
    }
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: whole.usage?.completion_tokens } });
  });
});

describe('refusals', () => {
  test.each([
    [{ suffix: 'end' }, 'suffix: not supported, got "end"'],
    [{ best_of: 2 }, 'best_of: must equal n: choosing among more candidates is not supported, got 2'],
    [{ max_tokens: 0 }, 'max_tokens: must be ≥ 1 without echo and prompt_logprobs, got 0'],
    [{ guided_json: {} }, 'guided_json: unknown field'],
    [
      { prompt: [] },
      'prompt: must be a string, a list of strings, a list of token ids, or a list of such lists, got []',
    ],
    [{ prompt: [1, 99_999] }, 'prompt: token ids must be whole numbers from 0 to '],
  ])('%j', async (fields, message) => {
    const { client } = await serve(['left']);
    const refused = client.completions.create({ ...ask, ...fields } as Request);
    await expect(refused).rejects.toMatchObject({ status: 400, error: { message: expect.stringContaining(message) } });
  });
});
