/** ART #127, by a client that is not the SDK: plain assistant messages have nothing to train. The server says what to send, and the step stays. */
import { expect, test } from 'vitest';
import { TestApi } from '../server/test-api.ts';
import { group, trainRequest, trajectory } from '../server/training-fixtures.ts';

test('the server refuses a trajectory of plain messages, and names the mend', async () => {
  const api = await TestApi.open();
  try {
    const messages = [
      { role: 'user', content: 'yes or no?' },
      { role: 'assistant', content: 'yes' },
    ];
    const plain = { ...trajectory(1, []), entries: messages.map((message) => ({ message })) };
    const response = await api.app.request('/api/models/agent/train', {
      method: 'POST',
      headers: { 'content-type': 'application/json', host: '127.0.0.1' },
      body: JSON.stringify(trainRequest('k', group(plain, plain))),
    });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({
      error: {
        message: expect.stringMatching(
          /groups\[0\]\.trajectories\[0\]: must hold at least one choice that the policy sampled, got 2 plain messages.*push the choice/,
        ),
      },
    });
    expect(api.registry.get('agent').model.step()).toBe(0);
  } finally {
    await api.close();
  }
});
