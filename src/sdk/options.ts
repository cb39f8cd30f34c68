/** Options that users pass: unknown names are refused at every depth, values are checked before anything is sent. Layer 5. */
import { advantageKinds } from '../core/advantage.ts';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import {
  type AdamOptions,
  defaultKlPenalty,
  defaultLearningRateSchedule,
  defaultOverlong,
  defaultTrainConfig,
  type KlPenalty,
  type LearningRateSchedule,
  lossDefaults,
  type OverlongOptions,
  type TrainConfig,
} from '../core/train-config.ts';
import { checkTrainConfig } from '../core/train-config-rules.ts';
import { describeIssue, formatValue } from '../wire/errors.ts';
import { trainOptions, type WireTrainOptions } from '../wire/training.ts';
import { toCamelCaseField, toTrainConfig, toWireTrainOptions } from '../wire/training-names.ts';

/** Options of one `train` call; what is left out takes the value of `defaultTrainConfig`. docs/training.md explains each. */
export type TrainOptions = Partial<Omit<TrainConfig, keyof NestedOptions>> & NestedOptions;

interface NestedOptions {
  readonly adam?: Partial<AdamOptions>;
  /** `warmupSteps` is 0 where it is left out; `totalSteps` may be left out with `constant`. */
  readonly learningRateSchedule?:
    | (Pick<LearningRateSchedule, 'decay'> & Partial<Omit<LearningRateSchedule, 'decay'>>)
    | null;
  readonly overlong?: Partial<OverlongOptions> | null;
  /** The reference is `base` and the form `loss` where they are left out. */
  readonly klPenalty?: (Pick<KlPenalty, 'weight'> & Partial<Omit<KlPenalty, 'weight'>>) | null;
}

/** The keys that each object among the options knows. */
const nestedKeys: { readonly [K in keyof NestedOptions]-?: readonly string[] } = {
  adam: Object.keys(defaultTrainConfig.adam),
  learningRateSchedule: Object.keys(defaultLearningRateSchedule),
  overlong: Object.keys(defaultOverlong),
  klPenalty: Object.keys(defaultKlPenalty),
};

const names = { loss: Object.keys(lossDefaults), advantage: advantageKinds };

/** Checks training options and puts them in wire form. Throws ConfigError with the name and the rule. */
export function encodeTrainOptions(options: TrainOptions): WireTrainOptions {
  refuseUnknownKeys('train options', options, Object.keys(defaultTrainConfig));
  for (const [name, known] of Object.entries(nestedKeys)) {
    const value: unknown = options[name as keyof NestedOptions];
    if (typeof value === 'object' && value !== null) refuseUnknownKeys(`train options.${name}`, value, known);
  }
  const reference: unknown = options.klPenalty?.reference;
  if (typeof reference === 'object' && reference !== null) {
    refuseUnknownKeys('train options.klPenalty.reference', reference, ['step', 'stepsBack']);
  }
  for (const [name, known] of Object.entries(names)) {
    const value: unknown = options[name as keyof typeof names];
    if (value !== undefined && value !== null && !(known as readonly unknown[]).includes(value)) {
      throw new ConfigError(`train options.${name}: must be one of ${known.join(', ')}, got ${formatValue(value)}`);
    }
  }
  const wire = toWireTrainOptions(options);
  const parsed = trainOptions.safeParse(wire);
  if (parsed.success) {
    checkTrainConfig(toTrainConfig(parsed.data, defaultTrainConfig));
    return parsed.data;
  }
  const { message } = describeIssue(parsed.error.issues[0], wire);
  throw new ConfigError(`train options.${toCamelCaseField(message)}`);
}
