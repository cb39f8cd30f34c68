/** What a real GGUF file holds: every value, token id and template text as transformers and llama.cpp read them. */
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createChatTemplate } from '../../src/formats/chat-template.ts';
import { openGgufFile } from '../../src/formats/gguf-file.ts';
import { ggufTokenizer } from '../../src/formats/gguf-tokenizer.ts';
import { readHfConfig } from '../../src/formats/hf-config.ts';
import { openModel } from '../../src/formats/model-source.ts';
import { createTokenizer, loadTokenizer } from '../../src/formats/tokenizer.ts';
import { parameterShapes } from '../../src/nn/parameters.ts';
import { describeWithModel, expected, tokens } from './smollm2.ts';

describeWithModel('files of SmolLM2-135M-Instruct', (path) => {
  test('configuration and names of the parameters', async () => {
    const { config } = await openModel(path);
    expect(config).toMatchObject({
      modelType: 'llama',
      vocabSize: 49_152,
      width: 576,
      layers: 30,
      heads: 9,
      kvHeads: 3,
      headSize: 64,
      ffWidth: 1536,
      ropeTheta: 100_000,
      normEpsilon: 1e-5,
      maxPositions: 8192,
      isEmbeddingTied: true,
      eosTokenId: [2],
    });
    expect([...parameterShapes(config).keys()].sort()).toEqual(Object.keys(expected.tensors).sort());
  });

  test('every tensor has the bits that transformers reads from the file', async () => {
    const found: Record<string, unknown> = {};
    for await (const [name, { shape, data }] of (await openModel(path)).streamTensors()) {
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      found[name] = { shape, sha256: createHash('sha256').update(bytes).digest('hex').slice(0, 16) };
    }
    expect(found).toEqual(expected.tensors);
  });

  test('token ids are llama.cpp’s, and decode to the text', async () => {
    const tokenizer = await (await openModel(path)).loadTokenizer();
    expect(tokens.texts.length).toBeGreaterThan(20);
    for (const { text, ids } of tokens.texts) {
      expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(ids);
      expect(tokenizer.decode(ids)).toBe(text);
    }
    expect([tokenizer.vocabSize, tokenizer.bosId, tokenizer.eosId, tokenizer.padId]).toEqual([49_152, 1, 2, 2]);
  });

  test.each(Object.entries(tokens.byPreTokenizer))('split as %s: llama.cpp’s ids', async (pre, ids) => {
    const { metadata } = await openGgufFile(path);
    const string = (key: string): string | null => (key === 'tokenizer.ggml.pre' ? pre : metadata.string(key));
    const files = ggufTokenizer({ ...metadata, string }, 49_152, path);
    const tokenizer = createTokenizer(files.tokenizerJson, files.tokenizerConfig);
    for (const [i, { text }] of tokens.texts.entries()) {
      // llama.cpp leaves out the NFC of Qwen's own tokenizer.json.
      if (pre === 'qwen2' && text.normalize('NFC') !== text) continue;
      expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(ids[i]);
    }
  });

  test('the chat template renders as in transformers', async () => {
    const { tokenizerConfig, loadTokenizer } = await openModel(path);
    const template = createChatTemplate(tokenizerConfig);
    const prompt = template.render({ messages: expected.messages, addGenerationPrompt: true });
    expect(prompt).toBe(expected.prompt);
    expect((await loadTokenizer()).encode(prompt)).toEqual(expected.promptIds);
  });

  test('as a Hugging Face folder it is the same model', async () => {
    const model = await openModel(path);
    const folder = await mkdtemp(join(tmpdir(), 'art-smollm2-'));
    try {
      await model.writeTextFiles(folder);
      expect(await readHfConfig(folder)).toEqual(model.config);
      const tokenizer = await loadTokenizer(folder);
      expect(tokenizer.config).toEqual(model.tokenizerConfig);
      expect(tokenizer.encode(expected.prompt)).toEqual(expected.promptIds);
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});
