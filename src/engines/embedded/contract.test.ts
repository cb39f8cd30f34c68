import { afterAll } from 'vitest';
import { createTinyModelFolder } from '../../../test/tiny-model-folder.ts';
import { loadTokenizer } from '../../formats/tokenizer.ts';
import { runEngineContract } from '../contract.ts';
import { createEmbeddedEngine } from './engine.ts';

const model = await createTinyModelFolder();
afterAll(model.remove);
const tokenizer = await loadTokenizer(model.modelDirectory);
const shared = { modelDirectory: model.modelDirectory, seed: 1, trainThreads: 1, cacheTokens: 8192 };

runEngineContract(
  'embedded, LoRA',
  () => createEmbeddedEngine({ ...shared, training: { kind: 'lora', rank: 4, alpha: 8 } }),
  tokenizer.decode,
);

runEngineContract(
  'embedded, every parameter',
  () => createEmbeddedEngine({ ...shared, training: { kind: 'full' }, microbatchTokens: 256 }),
  tokenizer.decode,
);
