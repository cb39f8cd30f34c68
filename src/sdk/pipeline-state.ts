/**
 * Which scenarios of a pipeline are finished, through restarts. Layer 5.
 * The state is written before each `train` call and names the scenarios of that call: after a crash the model's step tells whether
 * the call happened. So a scenario is trained once, and none is left out.
 */
import { z } from 'zod';
import { ConfigError, DataError } from '../core/errors.ts';
import { epochOrder } from './iterate-dataset.ts';

const count = z.int().nonnegative();

export const pipelineState = z.object({
  version: z.literal(1),
  seed: z.number(),
  scenarios: count,
  /** Every scenario of the run below this number is finished. */
  doneBelow: count,
  /** Those above it that are finished too. */
  done: z.array(count),
  /** Scenarios of the `train` call from `step`; finished if the model is past it. */
  pending: z.object({ step: count, scenarios: z.array(count) }),
  lastEvaluation: count.nullable(),
});
export type PipelineState = z.infer<typeof pipelineState>;

/** Deals out the scenarios of a run, numbered over all epochs. */
export class ScenarioBook<S> {
  readonly #scenarios: readonly S[];
  readonly #seed: number;
  readonly #end: number;
  readonly #done = new Set<number>();
  /** Given back, to be taken again. */
  readonly #again: number[] = [];
  readonly #givenBack = new Set<number>();
  #doneBelow = 0;
  #next = 0;
  #order: { readonly epoch: number; readonly items: readonly S[] } | undefined;

  constructor(scenarios: readonly S[], seed: number, epochs: number) {
    this.#scenarios = scenarios;
    this.#seed = seed;
    this.#end = scenarios.length * epochs;
  }

  /** Goes on where the state says. Throws ConfigError if it is of other scenarios. */
  resume(value: unknown, modelStep: number, stateKey: string): PipelineState {
    const parsed = pipelineState.safeParse(value);
    if (!parsed.success) {
      throw new DataError(
        `pipeline: the state '${stateKey}' of the model does not fit: ${z.prettifyError(parsed.error)}`,
      );
    }
    const state = parsed.data;
    if (state.seed !== this.#seed || state.scenarios !== this.#scenarios.length) {
      throw new ConfigError(
        `pipeline: must go on with seed ${state.seed} and ${state.scenarios} scenarios, as the state '${stateKey}' says, ` +
          `got seed ${this.#seed} and ${this.#scenarios.length}; another stateKey begins anew`,
      );
    }
    this.#doneBelow = state.doneBelow;
    this.#next = state.doneBelow;
    for (const index of state.done) this.#done.add(index);
    if (modelStep > state.pending.step) for (const index of state.pending.scenarios) this.finish(index);
    return state;
  }

  get isExhausted(): boolean {
    this.#skipDone();
    return this.#again.length === 0 && this.#next >= this.#end;
  }

  /** The next scenario that is not finished; undefined at the end. */
  take(): { readonly index: number; readonly scenario: S } | undefined {
    if (this.isExhausted) return undefined;
    const index = this.#again.shift() ?? this.#next++;
    return { index, scenario: this.#scenario(index) };
  }

  finish(index: number): void {
    this.#givenBack.delete(index);
    this.#done.add(index);
    while (this.#done.delete(this.#doneBelow)) this.#doneBelow++;
  }

  /** To be rolled out again, which a scenario is once; false, and finished, the second time. */
  giveBack(index: number): boolean {
    if (this.#givenBack.delete(index)) {
      this.finish(index);
      return false;
    }
    this.#givenBack.add(index);
    this.#again.push(index);
    return true;
  }

  state(pending: PipelineState['pending'], lastEvaluation: number | null): PipelineState {
    const { length: scenarios } = this.#scenarios;
    const done = [...this.#done].sort((a, b) => a - b);
    return { version: 1, seed: this.#seed, scenarios, doneBelow: this.#doneBelow, done, pending, lastEvaluation };
  }

  #skipDone(): void {
    while (this.#next < this.#doneBelow || this.#done.has(this.#next)) this.#next++;
  }

  #scenario(index: number): S {
    const { length } = this.#scenarios;
    const epoch = Math.floor(index / length);
    if (this.#order?.epoch !== epoch) this.#order = { epoch, items: epochOrder(this.#scenarios, this.#seed, epoch) };
    return this.#order.items[index % length] as S;
  }
}
