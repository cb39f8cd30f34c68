import { expect, test } from 'vitest';
import { tinyConfig } from '../../test/tiny-model.ts';
import { ConfigError, DataError } from '../core/errors.ts';
import { createAdapter, loraShapes, loraSpec, loraTensorName } from './lora.ts';
import { checkParameters, countValues, linearShape, parameterShapes } from './parameters.ts';
import { createRopeFeeds } from './rope-table.ts';

const config = tinyConfig();

test('a spec lists its modules once, in the order of the layer', () => {
  expect(loraSpec({ rank: 4, alpha: 8 }, config).targetModules).toEqual([
    'q_proj',
    'k_proj',
    'v_proj',
    'o_proj',
    'gate_proj',
    'up_proj',
    'down_proj',
  ]);
  expect(loraSpec({ rank: 1, alpha: 0.5, targetModules: ['up_proj', 'q_proj', 'up_proj'] }, config)).toEqual({
    rank: 1,
    alpha: 0.5,
    targetModules: ['q_proj', 'up_proj'],
  });
});

test('a model of fused projections has modules of its own', () => {
  const fused = tinyConfig({ modelType: 'phi3', hasFusedProjections: true });
  const spec = loraSpec({ rank: 2, alpha: 4 }, fused);
  expect(spec.targetModules).toEqual(['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj']);
  // q 4·16 + k 2·16 + v 2·16 from width 32; gate 48 + up 48.
  expect(loraShapes(fused, spec).get(loraTensorName(1, 'qkv_proj', 'B'))).toEqual([128, 2]);
  expect(linearShape(fused, 'gate_up_proj')).toEqual([96, 32]);
  expect(() => loraSpec({ rank: 2, alpha: 4, targetModules: ['q_proj'] }, fused)).toThrow(
    new ConfigError(
      "lora.targetModules: must be of qkv_proj, o_proj, gate_up_proj, down_proj for a phi3 model, got 'q_proj'",
    ),
  );
});

test.each([
  [{ rank: 0, alpha: 1 }, 'lora.rank: must be a whole number ≥ 1, got 0'],
  [{ rank: 1.5, alpha: 1 }, 'lora.rank: must be a whole number ≥ 1, got 1.5'],
  [{ rank: 1, alpha: 0 }, 'lora.alpha: must be positive, got 0'],
  [{ rank: 1, alpha: Number.NaN }, 'lora.alpha: must be positive, got NaN'],
  [{ rank: 1, alpha: Number.POSITIVE_INFINITY }, 'lora.alpha: must be positive, got Infinity'],
  [
    { rank: 1, alpha: 1, targetModules: ['q_proj', 'lm_head'] },
    "lora.targetModules: must be of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj for a qwen3 model, got 'lm_head'",
  ],
  // A name that every object has.
  [{ rank: 1, alpha: 1, targetModules: ['toString'] }, "got 'toString'"],
  [{ rank: 1, alpha: 1, targetModules: [] }, 'lora.targetModules: must name at least one module, got none'],
])('refuses %o', (options, message) => {
  expect(() => loraSpec(options, config)).toThrow(ConfigError);
  expect(() => loraSpec(options, config)).toThrow(message);
});

test('a fresh adapter: A uniform in ±1/√in with a stream per tensor, B zero, the seed decides all', () => {
  const spec = loraSpec({ rank: 4, alpha: 8 }, config);
  const adapter = createAdapter(config, spec, 5);
  expect([...adapter.keys()]).toEqual([...loraShapes(config, spec).keys()]);
  const a = adapter.get(loraTensorName(0, 'down_proj', 'A'))!;
  expect(a.shape).toEqual([4, 48]);
  const bound = 1 / Math.sqrt(48);
  expect(Math.max(...a.data.map(Math.abs))).toBeLessThanOrEqual(Math.fround(bound));
  // Uniform in ±bound has variance bound²/3 and mean 0: 192 values, six standard errors.
  const mean = a.data.reduce((sum, value) => sum + value, 0) / a.data.length;
  const meanSquare = a.data.reduce((sum, value) => sum + value * value, 0) / a.data.length;
  expect(Math.abs(mean)).toBeLessThan((6 * bound) / Math.sqrt(3 * 192));
  expect(Math.abs(meanSquare / (bound ** 2 / 3) - 1)).toBeLessThan(6 * Math.sqrt(0.8 / 192));
  for (const [name, { data }] of adapter) {
    if (name.includes('lora_B'))
      expect(
        data.every((value) => value === 0),
        name,
      ).toBe(true);
  }
  expect(createAdapter(config, spec, 5)).toEqual(adapter);
  expect(createAdapter(config, spec, 6).get(loraTensorName(0, 'down_proj', 'A'))).not.toEqual(a);
  expect(adapter.get(loraTensorName(1, 'down_proj', 'A'))).not.toEqual(a);
});

test('names and shapes as Hugging Face writes them', () => {
  expect(linearShape(config, 'k_proj')).toEqual([32, 32]);
  expect(linearShape(config, 'o_proj')).toEqual([32, 64]);
  expect(loraTensorName(1, 'gate_proj', 'B')).toBe('base_model.model.model.layers.1.mlp.gate_proj.lora_B.weight');
  const qwen2 = parameterShapes(tinyConfig({ hasQkNorm: false, hasAttentionBias: true, isEmbeddingTied: false }));
  expect([...qwen2.keys()].filter((name) => name.includes('bias') && name.includes('layers.0'))).toEqual([
    'model.layers.0.self_attn.q_proj.bias',
    'model.layers.0.self_attn.k_proj.bias',
    'model.layers.0.self_attn.v_proj.bias',
  ]);
  expect(qwen2.has('model.layers.0.self_attn.q_norm.weight')).toBe(false);
  expect(qwen2.get('lm_head.weight')).toEqual([64, 32]);
  // 64·32 + 2·(q 64·32 + k, v 2·32·32 + o 32·64 + mlp 3·48·32 + norms 32 + 32 + 16 + 16) + 32
  expect(countValues(parameterShapes(config).values())).toBe(2048 + 2 * (2048 + 2048 + 2048 + 4608 + 96) + 32);
});

test('checkParameters names what is missing, of another shape or left over', () => {
  const tensor = (...shape: number[]) => ({ shape, data: new Float32Array(shape.reduce((a, b) => a * b, 1)) });
  const shapes = new Map([
    ['a', [2, 3]],
    ['b', [4]],
  ]);
  const whole = { a: tensor(2, 3), b: tensor(4) };
  const check = (tensors: Readonly<Record<string, ReturnType<typeof tensor>>>) => () =>
    checkParameters(new Map(Object.entries(tensors)), shapes, 'model');
  expect(check(whole)).not.toThrow();
  expect(check({ b: tensor(4) })).toThrow(new DataError('model: must hold the tensor a [2, 3], got none'));
  expect(check({ ...whole, a: tensor(3, 2) })).toThrow(new DataError('model: a must be [2, 3], got [3, 2]'));
  expect(check({ ...whole, c: tensor(1) })).toThrow(
    new DataError("model: must hold nothing but the model's tensors, got c"),
  );
});

test('rope table: angle = position · theta^(−2i/C)', () => {
  const { cos, sin, ...rest } = createRopeFeeds(tinyConfig({ headSize: 4, ropeTheta: 100 }), 3);
  expect(rest).toEqual({});
  const tenth = Math.fround(0.1);
  const angles = [0, 0, 1, tenth, 2, 2 * tenth];
  expect(cos).toEqual({ dtype: 'float32', shape: [3, 2], data: Float32Array.from(angles, Math.cos) });
  expect(sin).toEqual({ dtype: 'float32', shape: [3, 2], data: Float32Array.from(angles, Math.sin) });
});
