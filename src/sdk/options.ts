/** Options that users pass: unknown names are refused, values are checked before anything is sent. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { type AdamOptions, defaultTrainConfig, type TrainConfig } from '../core/train-config.ts';
import { describeIssue } from '../wire/errors.ts';
import { trainOptions, type WireTrainOptions } from '../wire/training.ts';
import { toCamelCaseField, toWireTrainOptions } from '../wire/training-names.ts';

/** Options of one `train` call; what is left out takes the value of `defaultTrainConfig`. */
export type TrainOptions = Partial<Omit<TrainConfig, 'adam'>> & { readonly adam?: Partial<AdamOptions> };

/** Checks training options and puts them in wire form. Throws ConfigError with the name and the rule. */
export function encodeTrainOptions(options: TrainOptions): WireTrainOptions {
  refuseUnknownKeys('train options', options, Object.keys(defaultTrainConfig));
  refuseUnknownKeys('train options.adam', options.adam ?? {}, Object.keys(defaultTrainConfig.adam));
  const wire = toWireTrainOptions(options);
  const parsed = trainOptions.safeParse(wire);
  if (parsed.success) return parsed.data;
  const { message } = describeIssue(parsed.error.issues[0], wire);
  throw new ConfigError(`train options.${toCamelCaseField(message)}`);
}
