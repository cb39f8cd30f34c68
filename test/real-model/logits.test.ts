/** Logits of a real model against transformers' on the same weights. */
import { expect, test } from 'vitest';
import { openModel } from '../../src/formats/model-source.ts';
import { input, makeGraph } from '../../src/graph/builder.ts';
import { hostIds } from '../../src/graph/runtime.ts';
import { createOrtRuntime } from '../../src/graph/runtime-ort.ts';
import { declareDecoder, declareInputs, decoderHidden, decoderLogits, withoutCache } from '../../src/nn/decoder.ts';
import { createRopeFeeds } from '../../src/nn/rope-table.ts';
import { maskFeeds } from '../parity/families.ts';
import { weightFeeds } from '../tiny-model.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { decodeFloats, describeWithModel, expected } from './smollm2.ts';

describeWithModel('logits of SmolLM2-135M-Instruct', (path) => {
  test('at the first, a middle and the last of 200 tokens', async () => {
    const model = await openModel(path);
    const { config } = model;
    const { textIds, logits } = expected;
    const tensors = declareDecoder(config, null);
    const hidden = decoderHidden(tensors, declareInputs(config, 'T'), withoutCache);
    const graph = makeGraph({ logits: decoderLogits(tensors, hidden, input('rows', ['M'], 'int64')) });
    const runtime = await createOrtRuntime({ threads: 2 });
    const executable = await runtime.compile(graph);
    const results = await executable.run({
      ...weightFeeds(await model.readTensors(), new Map()),
      ...createRopeFeeds(config, textIds.length),
      ...maskFeeds(config, textIds.length),
      tokenIds: hostIds(textIds, [1, textIds.length]),
      positions: hostIds(
        textIds.map((_, t) => t),
        [1, textIds.length],
      ),
      rows: hostIds(logits.places),
    });
    const all = results.logits!.data;
    expect(all.length).toBe(logits.places.length * config.vocabSize);
    for (const [i, values] of logits.values.entries()) {
      const ours = Array.from(all.subarray(i * config.vocabSize, (i + 1) * config.vocabSize) as Float32Array);
      const chosen = ours.filter((_, id) => id % logits.stride === 0);
      expectClose(chosen, decodeFloats(values), tolerances.logits, `place ${logits.places[i]}`);
    }
    await executable.dispose();
  });
});
