/** The official Anthropic client: messages with tools, whole and streamed, token counts, errors. */
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { answer, lookUp, question, root, weatherSchema } from './shared.mjs';

const client = new Anthropic({ baseURL: `${root}/rollouts/anthropic`, apiKey: 'none', maxRetries: 0 });
const model = 'agent';
const tools = [{ name: 'weather', description: 'Weather of a city', input_schema: weatherSchema }];

for (const isStreamed of [false, true]) {
  const messages = [{ role: 'user', content: question }];
  const ask = () => {
    const body = { model, max_tokens: 200, system: 'Be brief.', tools, messages };
    return isStreamed ? client.messages.stream(body).finalMessage() : client.messages.create(body);
  };
  const first = await ask();
  assert.equal(first.stop_reason, 'tool_use');
  const use = first.content.find(({ type }) => type === 'tool_use');
  assert.deepEqual(use.input, { city: 'Paris' });
  const result = { type: 'tool_result', tool_use_id: use.id, content: lookUp(use.input.city) };
  messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: [result] });
  const second = await ask();
  assert.equal(second.stop_reason, 'end_turn');
  assert.equal(second.content[0].text, answer);
}

const counted = await client.messages.countTokens({ model, messages: [{ role: 'user', content: question }] });
assert.ok(counted.input_tokens > 0);
const broken = client.messages.create({ model: 'nobody', max_tokens: 5, messages: [{ role: 'user', content: 'x' }] });
await assert.rejects(broken, Anthropic.NotFoundError);
