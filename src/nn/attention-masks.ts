/**
 * Which keys a query sees, by the kind of a layer. Layer 2. Source: the masks of transformers `masking_utils.py`.
 *
 * Who runs a decoder graph feeds one mask for each kind that `layerKinds` lists, under `maskNames[kind]`, and no other: a model of
 * sliding layers alone has no `mask`. A mask is 0 where a query at `position` of its sequence sees a key, which is at the positions
 * `firstVisibleKey` … `position` of the same sequence, and `maskedScore` elsewhere. A window only hides keys: none moves, so that
 * sums keep their order and their bits.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';

export type LayerKind = 'full' | 'sliding';

/** What of a model decides its masks. */
export type Layers = Pick<DecoderConfig, 'layers' | 'slidingWindow' | 'slidingLayers'>;

/** Names of the graph inputs that hold the masks. */
export const maskNames: Readonly<Record<LayerKind, 'mask' | 'slidingMask'>> = { full: 'mask', sliding: 'slidingMask' };

export function isSlidingLayer(config: Layers, layer: number): boolean {
  return config.slidingWindow !== null && config.slidingLayers.includes(layer);
}

export function layerKind(config: Layers, layer: number): LayerKind {
  return isSlidingLayer(config, layer) ? 'sliding' : 'full';
}

/** The kinds that the model has, `full` first. */
export function layerKinds(config: Layers): readonly LayerKind[] {
  const kinds = new Set(Array.from({ length: config.layers }, (_, layer) => layerKind(config, layer)));
  return (['full', 'sliding'] as const).filter((kind) => kinds.has(kind));
}

/** Lowest position that a query at `position` sees: the window of a sliding layer counts the query itself. */
export function firstVisibleKey(config: Layers, kind: LayerKind, position: number): number {
  return kind === 'full' ? 0 : Math.max(0, position + 1 - config.slidingWindow!);
}
