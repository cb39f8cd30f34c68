/**
 * Compiled parts of a decoder and what is fed to them. Layer 3.
 * Fed weights: one compiled graph serves all layers of a kind. Baked weights are constants, so each layer has its own.
 */
import type { PartGraphs } from '../graph/backward-part.ts';
import type { Graph } from '../graph/builder.ts';
import { type Executable, type Feeds, type HostTensor, hostTensor } from '../graph/runtime.ts';
import { layerKind } from '../nn/attention-masks.ts';
import {
  attendGraphs,
  embedGraphs,
  finishGraphs,
  type GraphsOptions,
  headGraph,
  projectGraphs,
} from './layer-graphs.ts';
import type { GraphKind } from './loss-graph.ts';
import type { ModelParts, TrainedWeights } from './passes.ts';

export type PartName = 'embed' | 'project' | 'attend' | 'finish';
type Results = Record<string, HostTensor>;

export class LayerParts {
  readonly #model: ModelParts;
  readonly #options: GraphsOptions;
  readonly #weights = new Map<string, HostTensor>();
  /** Stand in for `#weights` of the same names. */
  #replaced: ReadonlyMap<string, HostTensor> = new Map();
  readonly #graphs = new Map<string, PartGraphs>();
  readonly #executables = new Map<string, Promise<Executable>>();

  constructor(model: ModelParts, isKeeping: boolean) {
    this.#model = model;
    this.#options = { config: model.config, lora: model.lora, trained: new Set(model.trained.keys()), isKeeping };
    for (const parameters of [model.parameters, model.trained]) {
      for (const [name, { data, shape }] of parameters) this.#weights.set(name, hostTensor(data, shape));
    }
  }

  /** What is run from now on reads these in place of the trained weights; null: the trained ones again. */
  replaceWeights(weights: TrainedWeights | null): void {
    const given = [...(weights ?? [])].map(([name, { data, shape }]) => [name, hostTensor(data, shape)] as const);
    this.#replaced = new Map(given);
  }

  /** Names of what the forward pass of a part keeps. */
  kept(part: PartName, layer: number): readonly string[] {
    return this.#part(part, layer).graphs.kept;
  }

  /** Runs the forward pass; without `isKeeping` only what the part is for comes back. */
  forward(part: PartName, layer: number, feeds: Feeds, isKeeping: boolean): Promise<Results> {
    const { key, template, graphs } = this.#part(part, layer);
    const fetches = Object.keys(graphs.forward.outputs).filter((name) => isKeeping || !graphs.kept.includes(name));
    return this.#run(`${key} forward`, graphs.forward, template, layer, feeds, fetches);
  }

  /** Gradients by the layer's own names, without `d.`; null if nothing before or in the part is trained. */
  async backward(part: PartName, layer: number, feeds: Feeds): Promise<Map<string, HostTensor> | null> {
    const { key, template, graphs } = this.#part(part, layer);
    if (!graphs.backward) return null;
    const known = new Set(graphs.backward.inputs.map(({ name }) => name!));
    const used = Object.fromEntries(Object.entries(feeds).filter(([name]) => known.has(name)));
    const results = await this.#run(`${key} backward`, graphs.backward, template, layer, used);
    return new Map(Object.entries(results).map(([name, value]) => [rename(name.slice(2), template, layer), value]));
  }

  head(kind: GraphKind, feeds: Feeds): Promise<Results> {
    const key = `head ${kind}`;
    const graph = this.#graphs.get(key)?.forward ?? headGraph(kind, this.#options);
    this.#graphs.set(key, { forward: graph, backward: null, kept: [] });
    return this.#run(key, graph, 0, 0, feeds);
  }

  #part(part: PartName, layer: number): { key: string; template: number; graphs: PartGraphs } {
    const template = this.#template(part, layer);
    const key = `${part} ${template}`;
    let graphs = this.#graphs.get(key);
    if (!graphs) {
      graphs = this.#build(part, template);
      this.#graphs.set(key, graphs);
    }
    return { key, template, graphs };
  }

  #build(part: PartName, layer: number): PartGraphs {
    switch (part) {
      case 'embed':
        return embedGraphs(this.#options);
      case 'project':
        return projectGraphs(layer, layer > 0 || this.#isEmbeddingTrained(), this.#options);
      case 'attend':
        return attendGraphs(this.#options);
      case 'finish':
        return finishGraphs(layer, this.#options);
    }
  }

  #isEmbeddingTrained(): boolean {
    return this.#model.trained.has('model.embed_tokens.weight');
  }

  /** The layer whose graphs serve this one too: the first layer's lack what nothing before it needs. */
  #template(part: PartName, layer: number): number {
    if (part === 'embed' || part === 'attend') return 0;
    if (this.#model.baked.size > 0 || layer === 0) return layer;
    const { config } = this.#model;
    for (let first = 1; first < layer; first++) {
      if (layerKind(config, first) === layerKind(config, layer)) return first;
    }
    return layer;
  }

  async #run(
    key: string,
    graph: Graph,
    template: number,
    layer: number,
    feeds: Feeds,
    fetches?: readonly string[],
  ): Promise<Results> {
    const { baked, runtime } = this.#model;
    let executable = this.#executables.get(key);
    const names = graph.inputs.map(({ name }) => name!);
    if (!executable) {
      const constants = new Map(names.filter((name) => baked.has(name)).map((name) => [name, baked.get(name)!.data]));
      executable = runtime.compile(graph, { constants });
      this.#executables.set(key, executable);
    }
    const all: Record<string, HostTensor> = { ...feeds };
    for (const name of names) {
      const own = rename(name, template, layer);
      const weight = baked.has(name) ? undefined : (this.#replaced.get(own) ?? this.#weights.get(own));
      if (weight) all[name] = weight;
    }
    return (await executable).run(all, fetches);
  }
}

function rename(name: string, from: number, to: number): string {
  return from === to ? name : name.replace(`.layers.${from}.`, `.layers.${to}.`);
}
