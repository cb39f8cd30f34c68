/** Which training options go together. Layer 0: the SDK refuses before it sends, the server whatever other clients send. */
import { ConfigError } from './errors.ts';
import { decayingSchedule } from './schedule.ts';
import { resolveLoss, type TrainConfig } from './train-config.ts';

/** Throws ConfigError for options that contradict each other, and for such that nothing would read: none is ignored. */
export function checkTrainConfig(config: TrainConfig): void {
  const broken = rules.find(({ isBroken }) => isBroken(config));
  if (broken !== undefined) throw new ConfigError(`train options.${broken.message(config)}`);
}

interface Rule {
  readonly isBroken: (config: TrainConfig) => boolean;
  readonly message: (config: TrainConfig) => string;
}

const rules: readonly Rule[] = [
  {
    isBroken: ({ learningRateSchedule: schedule }) =>
      schedule !== null && schedule.decay !== 'constant' && schedule.totalSteps === null,
    message: ({ learningRateSchedule: schedule }) =>
      `learningRateSchedule.totalSteps: must be the policy steps of the whole run with decay ${schedule?.decay}, got none`,
  },
  {
    isBroken: ({ learningRateSchedule: schedule }) =>
      schedule !== null && schedule.totalSteps !== null && schedule.warmupSteps > schedule.totalSteps,
    message: ({ learningRateSchedule: schedule }) =>
      `learningRateSchedule.warmupSteps: must be at most totalSteps, got ${schedule?.warmupSteps} of ${schedule?.totalSteps}`,
  },
  {
    isBroken: (config) => resolveLoss(config).clip === null && (config.clipLow !== null || config.clipHigh !== null),
    message: ({ loss }) => `clipLow and clipHigh: ${loss} clips nothing; leave them out, or choose another loss`,
  },
  {
    isBroken: (config) => {
      const { surrogate, clip } = resolveLoss(config);
      return surrogate === 'cispo' && clip !== null && clip.low > clip.high;
    },
    message: (config) => {
      const { clip } = resolveLoss(config);
      return `clipLow: must be at most clipHigh with loss ${config.loss}, got ${clip?.low} and ${clip?.high}`;
    },
  },
  ...(['importanceMask', 'sequenceMask'] as const).map(
    (name): Rule => ({
      isBroken: ({ [name]: range }) => range !== null && range[0] > range[1],
      message: ({ [name]: range }) => `${name}: must be [smallest, largest], got [${range?.join(', ')}]`,
    }),
  ),
  {
    isBroken: ({ overlong }) => overlong !== null && !overlong.mask && overlong.bufferTokens === 0,
    message: () => 'overlong: must mask or have a buffer of tokens, got neither; leave it out to do nothing',
  },
  {
    isBroken: (config) => readers(config).length > 0 && config.maxCompletionTokens === null,
    message: (config) => `maxCompletionTokens: ${readers(config)[0]} needs it, got none`,
  },
  {
    isBroken: (config) => readers(config).length === 0 && config.maxCompletionTokens !== null,
    message: ({ maxCompletionTokens }) =>
      `maxCompletionTokens: is read by lengthNormalization 'constant' (loss drGrpo) and overlong.bufferTokens alone, got ${maxCompletionTokens} without them`,
  },
  {
    isBroken: ({ overlong, maxCompletionTokens: most }) =>
      overlong !== null && most !== null && overlong.bufferTokens > most,
    message: ({ overlong, maxCompletionTokens }) =>
      `overlong.bufferTokens: must be at most maxCompletionTokens, got ${overlong?.bufferTokens} of ${maxCompletionTokens}`,
  },
];

/** What reads `maxCompletionTokens`. */
function readers(config: TrainConfig): readonly string[] {
  const isConstant = resolveLoss(config).lengthNormalization === 'constant';
  const hasBuffer = (config.overlong?.bufferTokens ?? 0) > 0;
  return [...(isConstant ? ["lengthNormalization 'constant'"] : []), ...(hasBuffer ? ['overlong.bufferTokens'] : [])];
}

/**
 * The rate of a call that begins at policy step `step`. Throws ConfigError where a schedule has come to its end: at rate 0 a call would
 * train nothing and not say so.
 */
export function learningRateAt(
  config: Pick<TrainConfig, 'learningRate' | 'learningRateSchedule'>,
  step: number,
): number {
  const { learningRate: peak, learningRateSchedule: schedule } = config;
  if (schedule === null) return peak;
  const { decay, warmupSteps, totalSteps } = schedule;
  const rate = decayingSchedule(step, decay, { peak, warmupSteps, totalSteps: totalSteps ?? warmupSteps + 1 });
  if (rate === 0) {
    throw new ConfigError(
      `train options.learningRateSchedule.totalSteps: the run is at step ${step}, where a schedule of ${totalSteps} steps has come ` +
        'to rate 0; give the steps of the whole run, or another decay',
    );
  }
  return rate;
}
