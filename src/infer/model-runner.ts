/**
 * Runs the decoder over the KV cache: prefill passes of several new tokens a sequence, decode passes of one. Layer 3.
 * Both have the bits of the trainer's pass, so that it does not matter which of them computed what.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import type { Precision } from '../graph/onnx.ts';
import type { HostTensor, Runtime } from '../graph/runtime.ts';
import type { LoraSpec } from '../nn/lora.ts';
import type { Parameter } from '../nn/parameters.ts';
import { createRopeFeeds } from '../nn/rope-table.ts';
import { type DecodeEntry, DecodePass, decodeGraph, longestDecode } from './decode-pass.ts';
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
  readonly #decode: DecodePass;
  readonly #longestDecode: number;

  private constructor(prefill: PrefillPass, decode: DecodePass, longest: number, vocabSize: number) {
    this.vocabSize = vocabSize;
    this.#prefill = prefill;
    this.#decode = decode;
    this.#longestDecode = longest;
  }

  static async create(
    config: DecoderConfig,
    cache: KvCache,
    runtime: Runtime,
    { lora, baked, vocabSize, precision = 'float32' }: RunnerOptions,
  ): Promise<ModelRunner> {
    const constants = new Map([...baked].map(([name, { data }]) => [name, data]));
    const [prefill, decode] = [prefillGraph, decodeGraph].map((graph) =>
      runtime.compile(graph(config, lora, vocabSize), { constants, precision }),
    );
    const rope = createRopeFeeds(config);
    return new ModelRunner(
      new PrefillPass(config, cache, await prefill!, rope, vocabSize),
      new DecodePass(config, cache, await decode!, rope, vocabSize),
      longestDecode(config),
      vocabSize,
    );
  }

  /** Runs all chunks in one pass, and returns the wanted rows in order. */
  prefill(chunks: readonly Chunk[], policy: PolicyFeeds): Promise<RowResult[]> {
    return this.#prefill.run(chunks, policy);
  }

  /** One more token of each sequence: their rows in order. */
  async decode(entries: readonly DecodeEntry[], policy: PolicyFeeds): Promise<RowResult[]> {
    const isShort = ({ length }: DecodeEntry): boolean => length < this.#longestDecode;
    const short = entries.filter(isShort);
    const rows = short.length === 0 ? [] : await this.#decode.run(short, policy);
    const long = entries.filter((entry) => !isShort(entry));
    const chunks = long.map(({ table, length, tokenId, row }) => ({
      table,
      start: length,
      tokenIds: [tokenId],
      rows: [{ ...row, at: 0 }],
    }));
    const longRows = long.length === 0 ? [] : await this.#prefill.run(chunks, policy);
    return entries.map((entry) => (isShort(entry) ? rows.shift()! : longRows.shift()!));
  }
}
