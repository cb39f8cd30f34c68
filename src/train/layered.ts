/**
 * Forward and backward pass layer by layer, for large models, long sequences and shared prefixes. Layer 3.
 * Between the layers only the inputs of each part stay in memory; the backward pass computes the rest again, or what products gave is
 * kept as well where there is room. The head runs over a few tokens at a time, so the logits of all never exist together.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { type Feeds, type HostTensor, hostTensor } from '../graph/runtime.ts';
import { layerKind } from '../nn/attention-masks.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import { type AttentionJob, gatherSpans, planAttention, scatterSpans } from './attention-plan.ts';
import { LayerParts } from './layer-parts.ts';
import { feedLoss, feedTargets, type LossSpec } from './loss-graph.ts';
import { lossFeeds, type TokenPlace, type TrainingSequence } from './microbatch.ts';
import type { ModelParts, PassResult } from './passes.ts';
import { layOutTokens, rowOf, type Span, type TokenLayout } from './token-layout.ts';

/** Logits of one run of the head: 50 MB. */
const MAX_LOGITS = 12_500_000;

export interface LayeredBatch {
  readonly sequences: readonly TrainingSequence[];
  /** `index` counts in `sequences`. */
  readonly places: readonly TokenPlace[];
  readonly layout: TokenLayout;
}

/** A batch of sequences in the order of `compareTokens`. */
export function createLayeredBatch(sequences: readonly TrainingSequence[], isSharing: boolean): LayeredBatch {
  const layout = layOutTokens(
    sequences.map(({ tokenIds }) => tokenIds),
    isSharing,
  );
  const places = sequences.flatMap(({ actionMask }, index) =>
    actionMask.flatMap((action, position) => (action === 1 ? [{ index, position }] : [])),
  );
  return { sequences, places, layout };
}

/** Values that stay in memory for each token until the backward pass; `isKeeping` as below. */
export function keptValues(config: DecoderConfig, isKeeping: boolean): number {
  const { layers, width, heads, kvHeads, headSize, ffWidth } = config;
  const inputs = width + 2 * (heads + kvHeads) * headSize;
  return layers * (inputs + (isKeeping ? 2 * width + 2 * ffWidth : 0));
}

interface LayerState {
  readonly x: HostTensor;
  readonly attention: Attention;
  readonly projectKept: Feeds;
  readonly finishKept: Feeds;
}

/** [1, A, N, C] each. */
interface Attention {
  readonly queries: HostTensor;
  readonly keys: HostTensor;
  readonly values: HostTensor;
  readonly mixed: HostTensor;
}

interface PassContext {
  readonly batch: LayeredBatch;
  readonly jobs: readonly AttentionJob[];
  /** What every `project` part reads, by layer kind. */
  readonly common: Feeds;
  readonly isKeeping: boolean;
}

/** Calls must not overlap. */
export class Layered {
  readonly #config: DecoderConfig;
  readonly #partsOf = new Map<boolean, LayerParts>();
  readonly #model: ModelParts;
  #rope: Readonly<Record<string, HostTensor>>;

  constructor(model: ModelParts) {
    this.#model = model;
    this.#config = model.config;
    this.#rope = createRopeFeeds(model.config);
  }

  /** `isKeeping`: results of products stay in memory instead of being computed again. */
  async train(batch: LayeredBatch, loss: LossSpec, scale: number, isKeeping: boolean): Promise<PassResult> {
    const gradients = new Map<string, Float32Array>();
    const context = this.#context(batch, isKeeping);
    const states: LayerState[] = [];
    const hidden = await this.#forward(context, states);
    const { sums, gradient } = await this.#head(context, hidden, loss, scale, gradients);
    const result = await this.#backward(context, states, gradient, gradients);
    for (const [name, { data }] of this.#model.trained) {
      if (!result.has(name)) result.set(name, new Float32Array(data.length));
    }
    return { ...sums, gradients: result };
  }

  /** Logprobs of the batch's places, in order. */
  async score(batch: LayeredBatch): Promise<Float32Array> {
    const context = this.#context(batch, false);
    const hidden = await this.#forward(context, null);
    const logprobs = new Float32Array(batch.places.length);
    for (const { feeds, from, count } of this.#chunks(context, hidden)) {
      const results = await this.#parts(false).head('logprobs', { x: feeds.x!, ...feedTargets(without(feeds, 'x')) });
      logprobs.set((results.logprobs!.data as Float32Array).subarray(0, count), from);
    }
    return logprobs;
  }

  #parts(isKeeping: boolean): LayerParts {
    let parts = this.#partsOf.get(isKeeping);
    if (!parts) {
      parts = new LayerParts(this.#model, isKeeping);
      this.#partsOf.set(isKeeping, parts);
    }
    return parts;
  }

  #context(batch: LayeredBatch, isKeeping: boolean): PassContext {
    const { tokenIds, positions, rows } = batch.layout;
    const table = Object.values(this.#rope)[0]!;
    if (table.shape[0]! < rows) this.#rope = createRopeFeeds(this.#config, 2 ** Math.ceil(Math.log2(rows)));
    return { batch, jobs: planAttention(batch.layout, this.#config), common: { tokenIds, positions }, isKeeping };
  }

  /** Fills `states` if there is a backward pass to come. Returns the residual stream after the last layer, [N, D]. */
  async #forward(context: PassContext, states: LayerState[] | null): Promise<HostTensor> {
    const parts = this.#parts(context.isKeeping);
    const isKeeping = states !== null;
    let { x } = await parts.forward('embed', 0, { tokenIds: context.common.tokenIds! }, false);
    for (let layer = 0; layer < this.#config.layers; layer++) {
      const feeds = { x: x!, ...this.#projectFeeds(context, layer) };
      const { queries, keys, values, ...projectKept } = await parts.forward('project', layer, feeds, isKeeping);
      const projected = { queries: queries!, keys: keys!, values: values! };
      const attention = { ...projected, mixed: await this.#attend(context, layer, projected) };
      const finish = { x: x!, mixed: this.#grouped(attention.mixed) };
      const { out, ...finishKept } = await parts.forward('finish', layer, finish, isKeeping);
      states?.push({ x: x!, attention, projectKept, finishKept });
      x = out;
    }
    return x!;
  }

  /** From d(loss)/d(last x) down to the embedding; adds to `gradients` and returns them. */
  async #backward(
    context: PassContext,
    states: LayerState[],
    last: HostTensor,
    gradients: Map<string, Float32Array>,
  ): Promise<Map<string, Float32Array>> {
    const parts = this.#parts(context.isKeeping);
    let dx = last;
    for (let layer = this.#config.layers - 1; layer >= 0; layer--) {
      const { x, attention, projectKept, finishKept } = states.pop()!; // Dropped layer by layer: memory falls on the way.
      const finishFeeds = { x, mixed: this.#grouped(attention.mixed), ...finishKept, 'd.out': dx };
      const finish = (await parts.backward('finish', layer, finishFeeds))!;
      const dAttention = await this.#attendBackward(context, layer, attention, finish.get('mixed')!);
      const projectFeeds = { x, ...this.#projectFeeds(context, layer), ...projectKept, ...dAttention };
      const project = await parts.backward('project', layer, projectFeeds);
      addGradients(finish, gradients);
      const direct = finish.get('x')!;
      if (!project) return gradients;
      addGradients(project, gradients);
      const through = project.get('x');
      if (!through) return gradients;
      addInto(direct.data as Float32Array, through.data as Float32Array);
      dx = direct;
    }
    const embed = await parts.backward('embed', 0, { tokenIds: context.common.tokenIds!, 'd.x': dx });
    if (embed) addGradients(embed, gradients);
    return gradients;
  }

  async #head(
    context: PassContext,
    hidden: HostTensor,
    loss: LossSpec,
    scale: number,
    gradients: Map<string, Float32Array>,
  ): Promise<{ sums: Omit<PassResult, 'gradients'>; gradient: HostTensor }> {
    const { places } = context.batch;
    const { width } = this.#config;
    const gradient = new Float32Array(hidden.data.length);
    const logprobs = new Float32Array(places.length);
    const sums = { loss: 0, entropy: 0, logprobs };
    for (const { feeds, from, count, rows } of this.#chunks(context, hidden)) {
      const all = { x: feeds.x!, ...feedLoss(without(feeds, 'x'), loss, scale) };
      const results = await this.#parts(context.isKeeping).head(loss.name, all);
      const { loss: lossSum, entropy, logprobs: found, 'd.x': dx, ...dWeights } = results;
      sums.loss += lossSum!.data[0] as number;
      sums.entropy += entropy!.data[0] as number;
      logprobs.set((found!.data as Float32Array).subarray(0, count), from);
      const dRows = dx!.data as Float32Array;
      for (const [i, row] of rows.entries()) {
        for (let c = 0; c < width; c++) gradient[row * width + c]! += dRows[i * width + c]!;
      }
      addGradients(new Map(Object.entries(dWeights).map(([name, value]) => [name.slice(2), value])), gradients);
    }
    return { sums, gradient: hostTensor(gradient, hidden.shape) };
  }

  /** What the head reads, a few places at a time; `rows` are those of the token list that its inputs came from. */
  *#chunks(
    { batch }: PassContext,
    hidden: HostTensor,
  ): Generator<{ feeds: Record<string, HostTensor>; from: number; count: number; rows: readonly number[] }> {
    const { sequences, places, layout } = batch;
    const { width, vocabSize } = this.#config;
    const size = Math.max(16, Math.floor(MAX_LOGITS / vocabSize));
    const data = hidden.data as Float32Array;
    for (let from = 0; from < places.length; from += size) {
      const some = places.slice(from, from + size);
      const rows = some.map(({ index, position }) => rowOf(layout.spans[index]!, position - 1));
      const feeds = lossFeeds(sequences, some, [...rows.keys()]);
      const count = feeds.logitRows!.shape[0]!; // Padded.
      const x = new Float32Array(count * width);
      for (const [i, row] of rows.entries()) x.set(data.subarray(row * width, (row + 1) * width), i * width);
      yield { feeds: { ...feeds, x: hostTensor(x, [count, width]) }, from, count: some.length, rows };
    }
  }

  #projectFeeds({ common }: PassContext, layer: number): Record<string, HostTensor> {
    const isLocal = this.#config.localRopeTheta !== null && layerKind(this.#config, layer) === 'sliding';
    const { cos, sin, localCos, localSin } = this.#rope;
    const tables = isLocal ? { localCos: localCos!, localSin: localSin! } : { cos: cos!, sin: sin! };
    return { tokenIds: common.tokenIds!, positions: common.positions!, ...tables };
  }

  /** [1, H, N, C] as the query rows of kv heads, [1, K, G·N, C]. */
  #grouped({ data, shape }: HostTensor): HostTensor {
    const { kvHeads, headSize } = this.#config;
    const rows = shape.reduce((product, size) => product * size, 1) / (kvHeads * headSize);
    return { dtype: 'float32', shape: [1, kvHeads, rows, headSize], data };
  }

  async #attend(context: PassContext, layer: number, from: Omit<Attention, 'mixed'>): Promise<HostTensor> {
    const mixed = new Float32Array(from.queries.data.length);
    for (const job of context.jobs) {
      const feeds = this.#jobFeeds(context, layer, job, from);
      const results = await this.#parts(context.isKeeping).forward('attend', 0, feeds, false);
      const { queries } = spansOf(job);
      scatterSpans(results.mixed!.data as Float32Array, this.#sizes(context, true), queries, job.time, mixed, false);
    }
    return hostTensor(mixed, from.queries.shape);
  }

  async #attendBackward(
    context: PassContext,
    layer: number,
    from: Attention,
    dMixed: HostTensor,
  ): Promise<Record<string, HostTensor>> {
    const { kvHeads, heads, headSize } = this.#config;
    const empty = ({ data, shape }: HostTensor): HostTensor => hostTensor(new Float32Array(data.length), shape);
    const [dQueries, dKeys, dValues] = [empty(from.queries), empty(from.keys), empty(from.values)];
    for (const job of context.jobs) {
      const { queries, keys } = spansOf(job);
      const given = new Float32Array(job.pieces.length * heads * job.time * headSize);
      gatherSpans(dMixed.data as Float32Array, this.#sizes(context, true), queries, job.time, given);
      const shape = [job.pieces.length, kvHeads, (heads / kvHeads) * job.time, headSize];
      const feeds = { ...this.#jobFeeds(context, layer, job, from), 'd.mixed': hostTensor(given, shape) };
      const found = (await this.#parts(context.isKeeping).backward('attend', 0, feeds))!;
      const spread = (name: string, into: HostTensor, isQuery: boolean): void =>
        scatterSpans(
          found.get(name)!.data as Float32Array,
          this.#sizes(context, isQuery),
          isQuery ? queries : keys,
          isQuery ? job.time : job.keyCount,
          into.data as Float32Array,
          !isQuery,
        );
      spread('queries', dQueries, true);
      spread('keys', dKeys, false);
      spread('values', dValues, false);
    }
    return { 'd.queries': dQueries, 'd.keys': dKeys, 'd.values': dValues };
  }

  #sizes({ batch }: PassContext, isQuery: boolean): { rows: number; heads: number; headSize: number } {
    const { heads, kvHeads, headSize } = this.#config;
    return { rows: batch.layout.rows, heads: isQuery ? heads : kvHeads, headSize };
  }

  #jobFeeds(
    context: PassContext,
    layer: number,
    job: AttentionJob,
    from: Omit<Attention, 'mixed'>,
  ): Record<string, HostTensor> {
    const { heads, kvHeads, headSize } = this.#config;
    const { queries, keys } = spansOf(job);
    const gather = (source: HostTensor, isQuery: boolean): HostTensor => {
      const length = isQuery ? job.time : job.keyCount;
      const shape = [job.pieces.length, isQuery ? heads : kvHeads, length, headSize];
      const data = new Float32Array(shape.reduce((product, size) => product * size, 1));
      const sizes = this.#sizes(context, isQuery);
      gatherSpans(source.data as Float32Array, sizes, isQuery ? queries : keys, length, data);
      return hostTensor(data, shape);
    };
    return {
      queries: gather(from.queries, true),
      keys: gather(from.keys, false),
      values: gather(from.values, false),
      mask: job.masks.get(layerKind(this.#config, layer))!,
    };
  }
}

function spansOf({ pieces }: AttentionJob): {
  queries: readonly (readonly Span[])[];
  keys: readonly (readonly Span[])[];
} {
  return { queries: pieces.map(({ queries }) => [queries]), keys: pieces.map(({ keys }) => keys) };
}

function without<T>(record: Readonly<Record<string, T>>, name: string): Record<string, T> {
  const { [name]: _left, ...rest } = record;
  return rest;
}

function addInto(sum: Float32Array, values: Float32Array): void {
  for (let i = 0; i < sum.length; i++) sum[i]! += values[i]!;
}

/** Adds what belongs to weights; what belongs to activations has no dot in its name. */
function addGradients(from: ReadonlyMap<string, HostTensor>, into: Map<string, Float32Array>): void {
  for (const [name, { data }] of from) {
    if (!name.includes('.')) continue;
    const sum = into.get(name);
    if (sum) addInto(sum, data as Float32Array);
    else into.set(name, data as Float32Array);
  }
}
