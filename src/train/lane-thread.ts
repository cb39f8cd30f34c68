/** The thread of one lane: see `lanes.ts`. Layer 3. */
import { parentPort } from 'node:worker_threads';
import { EngineError, messageOf } from '../core/errors.ts';
import { createOrtRuntime } from '../graph/runtime-ort.ts';
import { isFlushing, type LaneAnswer, type LaneCall, type LaneModel } from './lanes.ts';
import { Layered } from './layered.ts';
import type { ModelParts, PassResult } from './passes.ts';
import { WholeGraph } from './whole-graph.ts';

interface State {
  readonly model: ModelParts;
  readonly whole: WholeGraph;
  readonly layered: Layered;
}

let state: State | null = null;

async function start({ baked, trained, threads, ...model }: LaneModel): Promise<State> {
  const parts: ModelParts = {
    ...model,
    baked: new Map(baked.map((name) => [name, model.parameters.get(name)!])),
    trained: trained === 'parameters' ? model.parameters : trained,
    runtime: await createOrtRuntime({ threads }),
  };
  return { model: parts, whole: new WholeGraph(parts), layered: new Layered(parts) };
}

async function handle(call: LaneCall): Promise<PassResult | Float32Array | null> {
  if (call.name === 'start') {
    state = await start(call.model);
    return null;
  }
  if (!state) throw new EngineError('lane: must be started before any other call');
  if (call.name === 'weights') {
    for (const [name, data] of call.trained) state.model.trained.get(name)!.data.set(data);
    return null;
  }
  const { unit } = call;
  if (call.name === 'score') {
    return unit.kind === 'whole' ? state.whole.score(unit.microbatch) : state.layered.score(unit.batch);
  }
  const { loss, scale } = call;
  return unit.kind === 'whole'
    ? state.whole.train(unit.microbatch, loss, scale)
    : state.layered.train(unit.batch, loss, scale, unit.isKeeping);
}

parentPort?.on('message', async (call: LaneCall) => {
  let answer: LaneAnswer;
  try {
    answer = { ok: true, result: await handle(call), isFlushing: isFlushing() };
  } catch (error) {
    answer = { ok: false, message: messageOf(error) };
  }
  const result = answer.ok ? answer.result : null;
  const gradients = result === null || result instanceof Float32Array ? [] : [...result.gradients.values()];
  const buffers = gradients.map(({ buffer }) => buffer);
  parentPort?.postMessage(answer, buffers as ArrayBuffer[]);
});
