/** Pain 47: a judge on Azure could not be used. Here any client of OpenAI's, Azure's too, is a judge as it is. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { AzureOpenAI } from 'openai';
import { expect, test } from 'vitest';
import { createJudge, ruler } from '../../src/index.ts';

test("RULER asks through OpenAI's client for Azure", async () => {
  const seen: { url: string | undefined; key: unknown }[] = [];
  const content = JSON.stringify({
    trajectory_1: { explanation: 'right', score: 1 },
    trajectory_2: { explanation: 'wrong', score: 0.25 },
  });
  const server = createServer((request, response) => {
    seen.push({ url: request.url, key: request.headers['api-key'] });
    request.resume();
    const choices = [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content } }];
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ choices }));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  try {
    const client = new AzureOpenAI({ endpoint, apiKey: 'azure-key', apiVersion: '2024-10-21', deployment: 'judge' });
    const judge = createJudge({ model: 'judge', client });
    const question = { role: 'user', content: '1 + 1 = ?' } as const;
    const answers = ['2', '3'].map((text) => [question, { role: 'assistant', content: text } as const]);
    const scores = await ruler(answers, { judgeModel: judge, cache: false });
    expect([...scores.map(({ score }) => score)].sort()).toEqual([0.25, 1]);
    expect(seen[0]?.url).toBe('/openai/deployments/judge/chat/completions?api-version=2024-10-21');
    expect(seen[0]?.key).toBe('azure-key');
  } finally {
    server.close();
  }
});
