/** The bench models by the short names of the command line, and variants of them. */
import { starterTensors } from '../src/formats/starter-model.ts';
import { type BenchModel, createModel } from './models.ts';

/** In the order of `createModel`. */
export const modelKeys = ['starter', '3M', '27M', '135M'] as const;
export type ModelKey = (typeof modelKeys)[number];

export const modelByKey = (key: string): BenchModel => createModel(modelKeys.indexOf(key as ModelKey));

/** A model of the same sizes with another number of layers. */
export function withLayers(model: BenchModel, layers: number): BenchModel {
  const config = { ...model.config, layers };
  return { name: `${model.name} with ${layers} layers`, config, parameters: starterTensors(config, 1) };
}
