import { Hono } from 'hono';
import { expect, test } from 'vitest';
import { toHttpError } from '../../wire/errors.ts';
import { readJson } from './read-json.ts';

test.each([{}, { 'content-length': '100' }])(
  'a body that breaks off is an aborted request, not an error of ours (%o)',
  async (length) => {
    const app = new Hono();
    app.post('/', async (c) => c.json(await readJson(c, 1000)));
    app.onError((error, c) => {
      const { status, body, isInternal } = toHttpError(error);
      return c.json({ status, isInternal, message: body.error.message });
    });
    const body = new ReadableStream({
      pull: (controller) => {
        controller.error(Object.assign(new Error('aborted'), { code: 'ECONNRESET' }));
      },
    });
    const init = { method: 'POST', headers: { 'content-type': 'application/json', ...length }, body, duplex: 'half' };
    const response = await app.request('/', init as RequestInit);
    expect(await response.json()).toEqual({
      status: 499,
      isInternal: false,
      message: 'body: must arrive whole, got a connection that was closed before its end',
    });
  },
);
