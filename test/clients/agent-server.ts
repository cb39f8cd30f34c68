/** A server whose policy plays one agent: it greets, calls the tool that it is shown, reads its result, and fills in schemas. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { loadTokenizer } from '../../src/formats/tokenizer.ts';
import { RemoteBackend, TrainableModel } from '../../src/index.ts';
import { createArtServer } from '../../src/server/index.ts';
import { createScriptedEngine } from '../../src/testing/index.ts';
import { weatherReply } from '../weather-policy.ts';

export interface AgentServer extends AsyncDisposable {
  readonly url: string;
  /** Folder of the model that it serves as `agent`. */
  readonly baseModel: string;
  /** Prompts so far, by whether they continue sampled tokens. */
  readonly prompts: () => Promise<{
    readonly started: number;
    readonly continued: number;
    readonly rerendered: number;
  }>;
}

const corpus = [
  'Hello there. It is sunny in Paris. How is the weather in Paris? {"name": "weather", "arguments": {"city": "Paris"}}',
];

export async function startAgentServer(): Promise<AgentServer> {
  const root = await mkdtemp(join(tmpdir(), 'art-clients-'));
  const baseModel = join(root, 'model');
  await writeStarterModel({ seed: 1, directory: baseModel, corpus, width: 16, layers: 1, maxPositions: 4096 });
  const tokenizer = await loadTokenizer(baseModel);
  const server = await createArtServer({
    root: join(root, 'runs'),
    createEngine: async () =>
      createScriptedEngine({
        decode: tokenizer.decode,
        maxPositions: 4096,
        vocabSize: 65_536,
        reply: ({ promptIds, sampling }) => {
          const hasSchema = sampling.constraint?.type === 'jsonSchema';
          const text = weatherReply(tokenizer.decode(promptIds), hasSchema);
          return { tokenIds: tokenizer.encode(`${text}<|im_end|>`) };
        },
      }),
  });
  await new TrainableModel({ name: 'agent', project: 'clients', baseModel }).register(
    new RemoteBackend({ baseURL: server.url }),
  );
  return {
    url: server.url,
    baseModel,
    prompts: async () => {
      const text = await (await fetch(`${server.url}/metrics`)).text();
      const count = (origin: string): number =>
        Number(
          text.match(new RegExp(`^art_conversation_prompts\\{model="agent",origin="${origin}"\\} (\\d+)$`, 'm'))?.[1],
        );
      return { started: count('started'), continued: count('continued'), rerendered: count('rerendered') };
    },
    [Symbol.asyncDispose]: async () => {
      await server.close();
      await rm(root, { recursive: true, force: true });
    },
  };
}
