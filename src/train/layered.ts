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
import { feedLoss, feedTargets, type LossSpec, lossKind } from './loss-graph.ts';
import { lossFeeds, type TokenPlace, type TrainingSequence } from './microbatch.ts';
import type { ModelParts, PassResult, TrainedWeights } from './passes.ts';
import { cutRows, headShape, headsOf, MAX_CHUNK_ROWS, putHeads, type RowChunk, rowsOf } from './row-chunks.ts';
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
  /** For each chunk of rows. */
  readonly projectKept: readonly Feeds[];
  readonly finishKept: readonly Feeds[];
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
  readonly chunks: readonly RowChunk[];
  readonly isKeeping: boolean;
}

/** Calls must not overlap. */
export class Layered {
  readonly #config: DecoderConfig;
  readonly #partsOf = new Map<boolean, LayerParts>();
  readonly #model: ModelParts;
  readonly #rope: Readonly<Record<string, HostTensor>>;

  constructor(model: ModelParts) {
    this.#model = model;
    this.#config = model.config;
    this.#rope = createRopeFeeds(model.config, Math.max(MAX_CHUNK_ROWS, model.config.maxPositions));
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

  /** Logprobs of the batch's places, in order; `weights` stand in for the trained ones. */
  async score(batch: LayeredBatch, weights?: TrainedWeights): Promise<Float32Array> {
    const parts = this.#parts(false);
    parts.replaceWeights(weights ?? null);
    try {
      return await this.#score(batch);
    } finally {
      parts.replaceWeights(null);
    }
  }

  async #score(batch: LayeredBatch): Promise<Float32Array> {
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
    return { batch, jobs: planAttention(batch.layout, this.#config), chunks: cutRows(batch.layout), isKeeping };
  }

  /** Fills `states` if there is a backward pass to come. Returns the residual stream after the last layer, [N, D]. */
  async #forward(context: PassContext, states: LayerState[] | null): Promise<HostTensor> {
    const { width, heads, kvHeads, headSize, layers } = this.#config;
    const { rows, tokenIds } = context.batch.layout;
    const zeros = (...shape: number[]): HostTensor =>
      hostTensor(new Float32Array(shape.reduce((product, size) => product * size, 1)), shape);
    let x = (await this.#parts(context.isKeeping).forward('embed', 0, { tokenIds }, false)).x!;
    for (let layer = 0; layer < layers; layer++) {
      const queries = zeros(1, heads, rows, headSize);
      const [keys, values] = [zeros(1, kvHeads, rows, headSize), zeros(1, kvHeads, rows, headSize)];
      const projectKept: Feeds[] = [];
      for (const chunk of context.chunks) {
        const feeds = { x: rowsOf(x, chunk.span), ...this.#projectFeeds(chunk, layer) };
        const { queries: q, keys: k, values: v, ...kept } = await this.#run(context, 'project', layer, feeds, states);
        for (const [part, whole] of [[q!, queries] as const, [k!, keys] as const, [v!, values] as const]) {
          putHeads(part, whole, chunk.span);
        }
        projectKept.push(kept);
      }
      const mixed = await this.#attend(context, layer, { queries, keys, values });
      const after = zeros(rows, width);
      const finishKept: Feeds[] = [];
      for (const { span } of context.chunks) {
        const feeds = { x: rowsOf(x, span), mixed: this.#grouped(headsOf(mixed, span)) };
        const { out, ...kept } = await this.#run(context, 'finish', layer, feeds, states);
        (after.data as Float32Array).set(out!.data as Float32Array, span.row * width);
        finishKept.push(kept);
      }
      states?.push({ x, attention: { queries, keys, values, mixed }, projectKept, finishKept });
      x = after;
    }
    return x;
  }

  #run(
    { isKeeping }: PassContext,
    part: 'project' | 'finish',
    layer: number,
    feeds: Feeds,
    states: LayerState[] | null,
  ): Promise<Record<string, HostTensor>> {
    return this.#parts(isKeeping).forward(part, layer, feeds, states !== null);
  }

  /** From d(loss)/d(last x) down to the embedding; adds to `gradients` and returns them. */
  async #backward(
    context: PassContext,
    states: LayerState[],
    dx: HostTensor,
    gradients: Map<string, Float32Array>,
  ): Promise<Map<string, Float32Array>> {
    const parts = this.#parts(context.isKeeping);
    for (let layer = this.#config.layers - 1; layer >= 0; layer--) {
      const state = states.pop()!; // Dropped layer by layer: memory falls on the way.
      const dMixed = await this.#finishBackward(context, layer, state, dx, gradients);
      const dAttention = await this.#attendBackward(context, layer, state.attention, dMixed);
      for (const [i, chunk] of context.chunks.entries()) {
        const { span } = chunk;
        const feeds: Record<string, HostTensor> = { x: rowsOf(state.x, span), ...this.#projectFeeds(chunk, layer) };
        for (const [name, whole] of Object.entries(dAttention)) feeds[name] = headsOf(whole, span);
        const project = await parts.backward('project', layer, { ...feeds, ...state.projectKept[i] });
        if (!project) break;
        addGradients(project, gradients);
        const through = project.get('x');
        if (through) addInto(rowsOf(dx, span).data as Float32Array, through.data as Float32Array);
      }
    }
    const feeds = { tokenIds: context.batch.layout.tokenIds, 'd.x': dx };
    const embed = await parts.backward('embed', 0, feeds);
    if (embed) addGradients(embed, gradients);
    return gradients;
  }

  /** Replaces `dx` of the layer's output by that of its input, as far as it does not go through attention; returns d(mixed). */
  async #finishBackward(
    context: PassContext,
    layer: number,
    { x, attention, finishKept }: LayerState,
    dx: HostTensor,
    gradients: Map<string, Float32Array>,
  ): Promise<HostTensor> {
    const { mixed } = attention;
    const dMixed = hostTensor(new Float32Array(mixed.data.length), mixed.shape);
    for (const [i, { span }] of context.chunks.entries()) {
      const feeds = { x: rowsOf(x, span), mixed: this.#grouped(headsOf(mixed, span)), 'd.out': rowsOf(dx, span) };
      const found = (await this.#parts(context.isKeeping).backward('finish', layer, { ...feeds, ...finishKept[i] }))!;
      addGradients(found, gradients);
      (rowsOf(dx, span).data as Float32Array).set(found.get('x')!.data as Float32Array);
      const { data } = found.get('mixed')!;
      putHeads({ dtype: 'float32', shape: headShape(mixed, span), data }, dMixed, span);
    }
    return dMixed;
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
      const results = await this.#parts(context.isKeeping).head(lossKind(loss), all);
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

  #projectFeeds({ tokenIds, positions }: RowChunk, layer: number): Record<string, HostTensor> {
    const isLocal = this.#config.localRopeTheta !== null && layerKind(this.#config, layer) === 'sliding';
    const { cos, sin, localCos, localSin } = this.#rope;
    const tables = isLocal ? { localCos: localCos!, localSin: localSin! } : { cos: cos!, sin: sin! };
    return { tokenIds, positions, ...tables };
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
