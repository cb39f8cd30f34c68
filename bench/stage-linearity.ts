/** What more work costs: time of a training step against tokens and layers, of a sampling run against sequences, each with its line. */
import type { Runtime } from '../src/graph/runtime.ts';
import { createOrtRuntime } from '../src/graph/runtime-ort.ts';
import { fitLine } from './fit.ts';
import { measure } from './measure.ts';
import { modelByKey, withLayers } from './models-by-key.ts';
import { createSampling } from './sampling.ts';
import type { StageContext } from './stages.ts';
import { createTraining, type Workload } from './training.ts';

/** A line that explains less of the variance than this is not counted as one. */
const smallestR2 = 0.98;

interface Axis {
  readonly name: string;
  readonly unit: string;
  readonly values: readonly number[];
  readonly create: (runtime: Runtime, value: number) => Workload | Promise<Workload>;
}

export async function benchLinearity(context: StageContext): Promise<void> {
  const { isQuick, threads } = context.options;
  const model = modelByKey(isQuick ? 'starter' : '3M');
  const sequenceTokens = 256;
  const axes: readonly Axis[] = [
    {
      name: `train ${model.name}: time against tokens`,
      unit: 'token',
      values: (isQuick ? [1, 2, 3] : [8, 16, 24, 32, 48]).map((sequences) => sequences * sequenceTokens),
      create: (runtime, tokens) => createTraining(model, runtime, tokens / sequenceTokens),
    },
    {
      name: `train ${model.name}: time against layers`,
      unit: 'layer',
      values: isQuick ? [1, 2, 3] : [2, 4, 6, 8, 12],
      create: (runtime, layers) => createTraining(withLayers(model, layers), runtime, isQuick ? 1 : 8),
    },
    {
      name: `sample ${model.name}: time against sequences`,
      unit: 'sequence',
      values: isQuick ? [1, 2, 3] : [16, 32, 64, 96, 128],
      create: (runtime, sequences) => createSampling(model, runtime, isQuick ? 2 : 32, 'float32', sequences),
    },
  ];
  for (const axis of axes) await benchAxis(context, axis, await createOrtRuntime({ threads }));
}

async function benchAxis({ report, options: { isQuick } }: StageContext, axis: Axis, runtime: Runtime): Promise<void> {
  const points: (readonly [number, number])[] = [];
  for (const value of axis.values) {
    const workload = await axis.create(runtime, value);
    const samples = await measure(workload.run, { warmUps: 1, iterations: isQuick ? 1 : 3 });
    // The fastest: what else the machine does only adds.
    points.push([value, Math.min(...samples.map(({ seconds }) => seconds)) * 1000]);
  }
  const line = fitLine(points);
  const { slope, intercept, r2 } = line;
  report.add(
    { name: axis.name, value: slope, unit: `ms/${axis.unit}`, peer: 'straight line (R²)', ratio: r2, goal: smallestR2 },
    { points, line },
  );
  const fit = `${slope.toPrecision(4)} ms × ${axis.unit} ${intercept < 0 ? '−' : '+'} ${Math.abs(intercept).toPrecision(3)} ms`;
  console.log(`  ${points.map(([x, y]) => `${x}: ${y.toFixed(1)} ms`).join(', ')}; fit ${fit}, R² ${r2.toFixed(4)}`);
}
