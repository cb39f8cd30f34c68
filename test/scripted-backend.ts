/** A backend in this process whose policy says what a test wants, with one registered model. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SampleRequest } from '../src/engines/engine.ts';
import { writeStarterModel } from '../src/formats/starter-model.ts';
import { loadTokenizer } from '../src/formats/tokenizer.ts';
import { LocalBackend, type LocalBackendOptions, TrainableModel } from '../src/index.ts';
import { createScriptedEngine, type ScriptedEngine } from '../src/testing/index.ts';

export interface ScriptedBackend extends AsyncDisposable {
  readonly backend: LocalBackend;
  readonly model: TrainableModel;
  /** Root of the server. */
  readonly url: string;
  readonly engines: readonly ScriptedEngine[];
  /** Another model of the same server. */
  readonly register: (name: string) => Promise<TrainableModel>;
}

/** `replyTo` gets the text of the prompt; what it gives is ended with the end of a turn. */
export async function startScriptedBackend(
  replyTo: (prompt: string, request: SampleRequest) => string,
  options: LocalBackendOptions & { readonly delayMs?: () => number } = {},
): Promise<ScriptedBackend> {
  const { delayMs, ...backendOptions } = options;
  const root = await mkdtemp(join(tmpdir(), 'art-scripted-'));
  const baseModel = join(root, 'base');
  const corpus = ['Hello there. {"name": "weather", "arguments": {"city": "Paris"}}'];
  await writeStarterModel({ seed: 1, directory: baseModel, corpus, width: 16, layers: 1, maxPositions: 4096 });
  const tokenizer = await loadTokenizer(baseModel);
  const engines: ScriptedEngine[] = [];
  const backend = new LocalBackend({
    path: join(root, 'runs'),
    onWarning: () => undefined,
    createEngine: async () => {
      const engine = createScriptedEngine({
        decode: tokenizer.decode,
        maxPositions: 4096,
        vocabSize: 65_536,
        reply: (request) => ({
          tokenIds: tokenizer.encode(`${replyTo(tokenizer.decode(request.promptIds), request)}<|im_end|>`),
          ...(delayMs !== undefined && { delayMs: delayMs() }),
        }),
      });
      engines.push(engine);
      return engine;
    },
    ...backendOptions,
  });
  const register = async (name: string): Promise<TrainableModel> => {
    const model = new TrainableModel({ name, project: 'tests', baseModel });
    await model.register(backend);
    return model;
  };
  const model = await register('agent');
  return {
    backend,
    model,
    url: await backend.url(),
    engines,
    register,
    [Symbol.asyncDispose]: async () => {
      await backend.close();
      await rm(root, { recursive: true, force: true });
    },
  };
}

/** What a chat prompt of the starter model said last, whoever said it. */
export function lastMessage(prompt: string): string {
  const parts = prompt.split('<|im_start|>').map((part) => part.replace(/^\w+\n/, '').replace(/<\|im_end\|>\s*$/, ''));
  return parts.at(-2) ?? '';
}
