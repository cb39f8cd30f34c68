/** Every family's logits against transformers' and PEFT's, in float64 and on ONNX Runtime. */
import { describe, expect, test } from 'vitest';
import { createOrtRuntime } from '../../src/graph/runtime-ort.ts';
import { createReferenceRuntime } from '../../src/graph/runtime-reference.ts';
import { checkParameters, parameterShapes } from '../../src/nn/parameters.ts';
import { expectClose, tolerances } from '../tolerance.ts';
import { families, runLogits } from './families.ts';

const runtimes = {
  'float64 reference': createReferenceRuntime(),
  'ONNX Runtime': await createOrtRuntime({ threads: 1 }),
};

test('every model type has a case', () => {
  const types = new Set(families.map(({ config }) => config.modelType));
  expect([...types].sort()).toEqual(['gemma3_text', 'llama', 'mistral', 'phi3', 'qwen2', 'qwen3']);
});

describe.each(families.map((fixture) => [fixture.name, fixture] as const))('%s', (_name, fixture) => {
  const { config, parameters, tensors } = fixture;

  test('the file holds the parameters that the config calls for', () => {
    expect(() => checkParameters(parameters, parameterShapes(config), fixture.folder)).not.toThrow();
  });

  test.each(Object.entries(runtimes))('logits on %s', async (what, runtime) => {
    for (const [i, logits] of (await runLogits(runtime, fixture, null)).entries()) {
      expectClose(logits, tensors.get(`logits/${i}`)!.data, tolerances.logits, `${what}, sequence ${i}`);
    }
  });
});

const adapted = families.filter(({ adapter }) => adapter !== null);

describe.each(adapted.map((fixture) => [fixture.name, fixture] as const))(
  "%s with PEFT's adapter",
  (_name, fixture) => {
    test.each(Object.entries(runtimes))('logits on %s', async (what, runtime) => {
      const results = await runLogits(runtime, fixture, fixture.adapter);
      for (const [i, logits] of results.entries()) {
        const expected = fixture.tensors.get(`adapter/logits/${i}`)!.data;
        expectClose(logits, expected, tolerances.logits, `${what}, sequence ${i}`);
        const base = fixture.tensors.get(`logits/${i}`)!.data;
        // The adapter does something: otherwise the test would pass without it.
        expect(Math.max(...expected.map((value, at) => Math.abs(value - base[at]!)))).toBeGreaterThan(0.1);
      }
    });
  },
);
