/** A tokenizer that goes through a GGUF file gives the ids that it gave before. */
import { readFileSync } from 'node:fs';
import { afterAll, expect, test } from 'vitest';
import { string } from '../../src/export/gguf-metadata.ts';
import { tokenizerMetadata } from '../../src/export/gguf-tokenizer.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { createTokenizer } from '../../src/formats/tokenizer.ts';
import { randomParameters, tinyConfig } from '../tiny-model.ts';
import { createTestFolder, modelMetadata, modelTensors, writeGgufFile } from './gguf-files.ts';

interface TokenizerFile {
  readonly model: { readonly vocab: Readonly<Record<string, number>> };
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[];
}

const read = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../fixtures/tokenizers/${name}.json`, import.meta.url), 'utf8'));
const { texts } = read('expected') as { texts: string[] };

const folder = await createTestFolder();
afterAll(folder.remove);

async function throughGguf(json: unknown, vocabSize: number, name: string) {
  const config = { ...tinyConfig(), vocabSize, eosTokenId: [] };
  const tokenizerConfig = { bos_token: '<s>', eos_token: '</s>' };
  const { metadata } = tokenizerMetadata(json, tokenizerConfig, config);
  const kept = [...modelMetadata(config)].filter(([key]) => !key.startsWith('tokenizer.'));
  const path = folder.path(`${name}.gguf`);
  const tensors = modelTensors(config, randomParameters(config, 1));
  await writeGgufFile(path, new Map([...kept, ...metadata, ['tokenizer.chat_template', string('{{ 1 }}')]]), tensors);
  return (await openModel(path)).loadTokenizer();
}

/** Flags of added tokens, such as stripping spaces, have no place in a file: texts with such tokens are left out. */
test.each(['llama3', 'qwen', 'llama2', 'phi3', 'mistral', 'gemma3'])('%s', async (name) => {
  const json = read(name) as TokenizerFile;
  const added = json.added_tokens.map(({ content }) => content);
  const vocabSize = Math.max(...Object.values(json.model.vocab), ...json.added_tokens.map(({ id }) => id)) + 1;
  const before = createTokenizer(json);
  const after = await throughGguf(json, vocabSize, name);
  expect(after.vocabSize).toBe(before.vocabSize);
  const hasFlagged = (text: string): boolean =>
    added.some((token) =>
      text
        .normalize('NFC')
        .replaceAll('▁', ' ')
        .includes(token.trim().replaceAll('▁', ' ') || token),
    );
  // Of Mistral's two ways to put a space before a text a file keeps SentencePiece's, which adds to one that is there.
  const plain = texts.filter((text) => !hasFlagged(text) && !(name === 'mistral' && /^[ ▁]/.test(text)));
  expect(plain.length).toBeGreaterThan(30);
  for (const text of plain) {
    const ids = before.encode(text);
    expect(after.encode(text), JSON.stringify(text)).toEqual(ids);
    expect(after.decode(ids), JSON.stringify(text)).toBe(before.decode(ids));
  }
});

test('tokens that begin with a byte order mark stay apart from those that do not', async () => {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const vocab = ['<unk>', '<s>', '</s>', ...bytes, 'a', 'b', 'ab', '\ufeff', '\ufeffab', '▁'];
  const json = {
    added_tokens: ['<unk>', '<s>', '</s>'].map((content, id) => ({ id, content, special: true })),
    normalizer: { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
      ],
    },
    model: {
      type: 'BPE',
      unk_token: '<unk>',
      fuse_unk: true,
      byte_fallback: true,
      vocab: Object.fromEntries(vocab.map((token, id) => [token, id])),
      merges: [
        ['a', 'b'],
        ['\ufeff', 'ab'],
      ],
    },
  };
  const tokenizer = await throughGguf(json, vocab.length, 'marks');
  const id = (token: string): number => vocab.indexOf(token);
  expect(tokenizer.encode('ab \ufeffab\ufeffb')).toEqual([id('ab'), id('▁'), id('\ufeffab'), id('\ufeff'), id('b')]);
  expect(tokenizer.decode([id('\ufeffab'), id('ab')])).toBe('\ufeffabab');
});
