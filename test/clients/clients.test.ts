/** Today's clients against our server, as their users write them. `npm run test:clients` installs them and sets the variables below. */
import { execFile } from 'node:child_process';
import { copyFile, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, test } from 'vitest';
import { root } from '../source-imports.ts';
import { startAgentServer } from './agent-server.ts';

const programs = join(import.meta.dirname, 'programs');

/** What runs a program, and where its packages are. */
interface Runtime {
  readonly name: string;
  readonly command: string | undefined;
  readonly folder: string | undefined;
  readonly programs: readonly string[];
}

const runtimes: readonly Runtime[] = [
  {
    name: 'this Node.js',
    command: process.execPath,
    folder: process.env.ART_CLIENTS_NODE20,
    programs: [
      'openai.mjs',
      'anthropic.mjs',
      'ai-sdk.mjs',
      'langchain.mjs',
      'openai-agents.mjs',
      'capture-openai-ai-sdk.mjs',
      'capture-agents.mjs',
    ],
  },
  {
    name: 'Node.js 22, with the majors that need it',
    command: process.env.ART_NODE22,
    folder: process.env.ART_CLIENTS_NODE22,
    programs: ['openai.mjs', 'ai-sdk.mjs', 'capture-openai-ai-sdk.mjs'],
  },
  {
    name: 'Mastra, on Node.js 22',
    command: process.env.ART_NODE22,
    folder: process.env.ART_CLIENTS_MASTRA,
    programs: ['capture-mastra.mjs'],
  },
  {
    name: 'Python',
    command: process.env.ART_CLIENTS_PYTHON,
    folder: process.env.ART_CLIENTS_PYTHON && programs,
    programs: ['openai_client.py', 'litellm_client.py'],
  },
];

/** Clients must not tell others of what they do here, and must not be slowed down by trying. */
const environment = {
  ...process.env,
  OPENAI_AGENTS_DISABLE_TRACING: '1',
  LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  LANGSMITH_TRACING: 'false',
  MASTRA_TELEMETRY_DISABLED: '1',
  /** What programs capture with. */
  ART_SDK: pathToFileURL(join(root, 'dist', 'src', 'index.js')).href,
};

for (const { name, command, folder, programs: files } of runtimes) {
  const isThere = command !== undefined && folder !== undefined;
  describe.skipIf(!isThere)(isThere ? name : `${name}: skipped, needs npm run test:clients`, () => {
    beforeAll(async () => {
      // A program finds its packages beside itself.
      for (const file of folder === programs ? [] : await readdir(programs)) {
        await copyFile(join(programs, file), join(folder as string, file));
      }
    });

    test.each(files)('%s', { timeout: 120_000 }, async (file) => {
      await using server = await startAgentServer();
      const run = promisify(execFile)(command as string, [join(folder as string, file), server.url], {
        timeout: 110_000,
        env: { ...environment, ART_BASE_MODEL: server.baseModel },
      });
      await expect(run).resolves.toMatchObject({ stderr: expect.not.stringContaining('Error') });
      const { continued, rerendered } = await server.prompts();
      expect({ file, rerendered }).toEqual({ file, rerendered: 0 });
      expect(continued).toBeGreaterThan(0);
    });
  });
}
