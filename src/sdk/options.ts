/** Options that users pass: unknown names are refused, values are checked before anything is sent. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { type AdamOptions, defaultTrainConfig, type TrainConfig } from '../core/train-config.ts';
import { describeIssue } from '../wire/errors.ts';
import { trainOptions, type WireTrainOptions } from '../wire/training.ts';

/** Options of one `train` call; what is left out takes the value of `defaultTrainConfig`. */
export type TrainOptions = Partial<Omit<TrainConfig, 'adam'>> & { readonly adam?: Partial<AdamOptions> };

/** Checks training options and puts them in wire form. Throws ConfigError with the name and the rule. */
export function encodeTrainOptions(options: TrainOptions): WireTrainOptions {
  refuseUnknownKeys('train options', options, Object.keys(defaultTrainConfig));
  refuseUnknownKeys('train options.adam', options.adam ?? {}, Object.keys(defaultTrainConfig.adam));
  const { adam, ...rest } = options;
  const wire = { ...toSnakeCase(rest), ...(adam === undefined ? {} : { adam: toSnakeCase(adam) }) };
  const parsed = trainOptions.safeParse(wire);
  if (parsed.success) return parsed.data;
  const { message } = describeIssue(parsed.error.issues[0], wire);
  throw new ConfigError(`train options.${toCamelCase(message)}`);
}

function toSnakeCase(options: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(options)
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => [key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value]),
  );
}

/** Field names at the start of a message, as in `adam.weight_decay: must be …`. */
function toCamelCase(message: string): string {
  const [field = ''] = message.split(':', 1);
  return field.replace(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase()) + message.slice(field.length);
}
