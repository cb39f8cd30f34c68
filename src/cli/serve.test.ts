import { expect, test } from 'vitest';
import { createServeCommand } from './serve.ts';

test('--allow-remote refuses what names no place, before anything is loaded', async () => {
  const command = createServeCommand()
    .exitOverride()
    .configureOutput({ writeErr: () => undefined });
  for (const place of ['my-bucket/runs', 's3:my-bucket', 'https://my-bucket', 's3://']) {
    const parsed = command.parseAsync(['--model', './nowhere', '--allow-remote', place], { from: 'user' });
    await expect(parsed).rejects.toThrow(/--allow-remote.*must begin with s3:\/\/bucket or hf:\/\/org/);
  }
});
