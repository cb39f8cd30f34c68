/** The official client, versions 6 and 7: chat completions, tools, structured output, completions, responses, models. */
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { answer, baseURL, lookUp, question, root, weatherSchema } from './shared.mjs';

const client = new OpenAI({ baseURL: `${root}/v1`, apiKey: 'none', maxRetries: 0 });
const model = 'agent';
const user = { role: 'user', content: 'Hello' };

const { data: plain, response } = await client.chat.completions
  .create({ model, messages: [user], n: 2, logprobs: true, top_logprobs: 2, seed: 1, return_token_ids: true })
  .withResponse();
assert.equal(plain.choices.length, 2);
assert.equal(plain.choices[0].message.content, 'Hello there.');
assert.equal(plain.choices[0].logprobs.content.length, plain.choices[0].token_ids.length);
assert.equal(plain.usage.total_tokens, plain.usage.prompt_tokens + plain.usage.completion_tokens);
assert.equal(response.headers.get('x-art-policy-step'), '0');

let text = '';
let usage = null;
const options = { model, messages: [user], stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(options)) {
  text += chunk.choices[0]?.delta.content ?? '';
  usage = chunk.usage ?? usage;
}
assert.equal(text, 'Hello there.');
assert.ok(usage.completion_tokens > 0);

const runner = new OpenAI({ baseURL: baseURL('openai-tools'), apiKey: 'none', maxRetries: 0 });
for (const stream of [false, true]) {
  const run = runner.chat.completions.runTools({
    model,
    stream,
    messages: [{ role: 'user', content: question }],
    tools: [
      {
        type: 'function',
        function: {
          name: 'weather',
          parameters: weatherSchema,
          parse: JSON.parse,
          function: ({ city }) => lookUp(city),
        },
      },
    ],
  });
  assert.equal(await run.finalContent(), answer);
}

const format = zodResponseFormat(z.object({ city: z.string(), degrees: z.number() }), 'place');
const parsed = await client.chat.completions.parse({ model, messages: [user], response_format: format });
assert.deepEqual(parsed.choices[0].message.parsed, { city: 'Paris', degrees: 21 });

const completion = await client.completions.create({ model, prompt: 'Hello', max_tokens: 32, logprobs: 1 });
assert.equal(completion.choices[0].text, 'Hello there.');

const said = await client.responses.create({ model, input: 'Hello' });
assert.equal(said.output_text, 'Hello there.');
const again = await client.responses.create({ model, input: 'Hello', previous_response_id: said.id });
assert.equal(again.output_text, 'Hello there.');
const events = [];
for await (const event of await client.responses.create({ model, input: 'Hello', stream: true }))
  events.push(event.type);
assert.equal(events[0], 'response.created');
assert.equal(events.at(-1), 'response.completed');

const models = [];
for await (const entry of client.models.list()) models.push(entry.id);
assert.ok(models.includes('agent') && models.includes('agent@0'));
await assert.rejects(client.chat.completions.create({ model, messages: [user], magic: 1 }), OpenAI.BadRequestError);
await assert.rejects(client.chat.completions.create({ model: 'nobody', messages: [user] }), OpenAI.NotFoundError);
