/** `art serve`: one model behind an OpenAI-compatible server on this computer, until Ctrl-C. Layer 6. */
import { Command, InvalidArgumentError } from 'commander';
import { LocalBackend } from '../local-backend.ts';
import { TrainableModel } from '../sdk/model.ts';

interface ServeOptions {
  readonly model: string;
  readonly name: string;
  readonly project: string;
  readonly path: string;
  readonly port: number;
  readonly rank: number;
  readonly alpha: number;
  readonly seed: number;
}

/** The action resolves when SIGINT or SIGTERM has come and everything is closed. */
export function createServeCommand(): Command {
  return new Command('serve')
    .description('Serve a model and train it through the same server (RemoteBackend). Resumes a run of this name.')
    .requiredOption('--model <directory>', 'Hugging Face model directory')
    .option('--name <name>', 'name that requests use', 'agent')
    .option('--project <project>', 'project the run belongs to', 'default')
    .option('--path <directory>', 'folder of all runs', '.art')
    .option('--port <port>', 'port on 127.0.0.1; 0 = a free one', parseInteger, 8000)
    .option('--rank <rank>', 'rank of the LoRA adapter', parseInteger, 8)
    .option('--alpha <alpha>', 'alpha of the LoRA adapter', parseInteger, 16)
    .option('--seed <seed>', "seed of the adapter's initial weights", parseInteger, 0)
    .action(serve);
}

async function serve(options: ServeOptions): Promise<void> {
  const { model: baseModel, name, project, path, port, rank, alpha, seed } = options;
  const stopped = new Promise<void>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => resolve());
  });
  await using backend = new LocalBackend({ path, port });
  const model = new TrainableModel({ name, project, baseModel, lora: { rank, alpha }, seed });
  await model.register(backend);
  const url = await backend.url();
  console.log(`${name}, step ${await model.getStep()}`);
  console.log(`OpenAI base URL  ${url}/v1`);
  console.log(`training         new RemoteBackend({ baseURL: '${url}' })`);
  console.log('Ctrl-C stops it.');
  await stopped;
}

function parseInteger(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('must be a whole number of at most nine digits.');
  return Number(text);
}
