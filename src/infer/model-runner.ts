/**
 * Runs the decoder over the KV cache: prefill passes of several new tokens a sequence, decode passes of one. Layer 3.
 * Both have the bits of the trainer's pass, so that it does not matter which of them computed what.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import type { Graph } from '../graph/builder.ts';
import type { Precision } from '../graph/onnx.ts';
import type { Executable, HostTensor, Runtime } from '../graph/runtime.ts';
import type { LoraSpec } from '../nn/lora.ts';
import type { Parameter } from '../nn/parameters.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import { decodeGraph, isExactDecode } from './decode-graph.ts';
import { type DecodeEntry, DecodePass } from './decode-pass.ts';
import type { KvCache } from './kv-cache.ts';
import { type Chunk, PrefillPass, prefillGraph } from './prefill-pass.ts';
import type { RowResult } from './row-choice.ts';

/** Weights that belong to one policy step, by graph input name. */
export type PolicyFeeds = Readonly<Record<string, HostTensor>>;

export interface RunnerOptions {
  readonly lora: LoraSpec | null;
  /** Constants of the sessions, which pack them for small batches; other weights are fed by `PolicyFeeds`. */
  readonly baked: ReadonlyMap<string, Parameter>;
  /** Ids from here on have no token and are never drawn. */
  readonly vocabSize: number;
  /** Of products with baked weights; default 'float32', which alone is exact. */
  readonly precision?: Precision;
}

/** Compiled graphs over one cache. Not reentrant: a pass must end before the next begins. */
export class ModelRunner {
  readonly vocabSize: number;
  readonly #prefill: PrefillPass;
  /** Null if single tokens must go through prefill passes to have the right bits. */
  readonly #decode: DecodePass | null;

  private constructor(prefill: PrefillPass, decode: DecodePass | null, vocabSize: number) {
    this.#prefill = prefill;
    this.#decode = decode;
    this.vocabSize = vocabSize;
  }

  static async create(
    config: DecoderConfig,
    cache: KvCache,
    runtime: Runtime,
    { lora, baked, vocabSize, precision = 'float32' }: RunnerOptions,
  ): Promise<ModelRunner> {
    const constants = new Map([...baked].map(([name, { data }]) => [name, data]));
    const compile = (graph: Graph): Promise<Executable> => runtime.compile(graph, { constants, precision });
    const compiled = new Map<boolean, Promise<Executable>>();
    const decode = (hasHeads: boolean): Promise<Executable> => {
      const known = compiled.get(hasHeads) ?? compile(decodeGraph(config, lora, vocabSize, hasHeads));
      compiled.set(hasHeads, known);
      return known;
    };
    const rope = createRopeFeeds(config);
    const prefill = await compile(prefillGraph(config, lora, vocabSize));
    const hasDecode = precision === 'int8' || isExactDecode(config);
    if (hasDecode) await decode(false);
    return new ModelRunner(
      new PrefillPass(config, cache, prefill, rope, vocabSize),
      hasDecode ? new DecodePass(config, cache, decode, rope, vocabSize) : null,
      vocabSize,
    );
  }

  /** Runs all chunks in one pass, and returns the wanted rows in order. */
  prefill(chunks: readonly Chunk[], policy: PolicyFeeds): Promise<RowResult[]> {
    return this.#prefill.run(chunks, policy);
  }

  /** One more token of each sequence: their rows in order. */
  decode(entries: readonly DecodeEntry[], policy: PolicyFeeds): Promise<RowResult[]> {
    if (this.#decode) return this.#decode.run(entries, policy);
    const chunks = entries.map(({ table, length, tokenId, row }) => ({
      table,
      start: length,
      tokenIds: [tokenId],
      rows: [{ ...row, at: 0 }],
    }));
    return this.#prefill.run(chunks, policy);
  }
}
