/** A bench model as a folder that the engine and peers load: the same weights in Hugging Face's layout, with a placeholder tokenizer. */
import { createHash } from 'node:crypto';
import { access, mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { trainByteBpe } from '../src/formats/bpe-trainer.ts';
import { toHfConfig } from '../src/formats/hf-config.ts';
import { toSafetensors, writeSafetensors } from '../src/formats/safetensors.ts';
import type { BenchModel } from './models.ts';

/** Path of the folder below `parent`, written unless it is there; its name holds a hash of configuration and weights. */
export async function writeModelFolder(model: BenchModel, parent: string): Promise<string> {
  const directory = join(parent, hashModel(model));
  const isThere = await access(directory).then(
    () => true,
    () => false,
  );
  if (isThere) return directory;
  const part = `${directory}.part`;
  await rm(part, { recursive: true, force: true });
  await mkdir(part, { recursive: true });
  const writeJson = (name: string, value: unknown): Promise<void> => writeFile(join(part, name), JSON.stringify(value));
  await writeJson('config.json', toHfConfig(model.config));
  // Without ids that end a text: ours and every peer sample to the full length.
  await writeJson('generation_config.json', { bos_token_id: null, eos_token_id: null, pad_token_id: 0 });
  await writeJson('tokenizer.json', placeholderTokenizer(model.config.vocabSize));
  await writeJson('tokenizer_config.json', { tokenizer_class: 'PreTrainedTokenizerFast' });
  await writeSafetensors(join(part, 'model.safetensors'), toSafetensors(model.parameters), { format: 'pt' });
  await rename(part, directory);
  return directory;
}

function hashModel({ config, parameters }: BenchModel): string {
  const hash = createHash('sha256').update(JSON.stringify(config));
  for (const [name, { data, shape }] of parameters) {
    hash.update(`${name} ${shape}`).update(Uint8Array.from(new Uint8Array(data.buffer, data.byteOffset, 64)));
  }
  return hash.digest('hex').slice(0, 16);
}

/** One that can write every id of the model: bytes, then words that no text has. */
function placeholderTokenizer(vocabSize: number): unknown {
  const specialTokens = Array.from({ length: vocabSize - 256 }, (_, index) => `<|${index}|>`);
  return trainByteBpe([], { vocabSize, specialTokens });
}
