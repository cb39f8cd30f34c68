/** Training options that are typed but have no computation yet: refused, never ignored. Layer 5. */
import { ConfigError } from '../../core/errors.ts';
import { resolveLoss, type TrainConfig } from '../../core/train-config.ts';

const rows: readonly (readonly [name: string, isSet: (config: TrainConfig) => boolean])[] = [
  ['overlong', ({ overlong }) => overlong !== null],
  ['maxAdvantage', ({ maxAdvantage }) => maxAdvantage !== null],
  [
    'this lengthNormalization',
    (config) => ['trajectory', 'constant'].includes(resolveLoss(config).lengthNormalization),
  ],
];

/** Throws ConfigError that names the option. */
export function refuseUnfinished(config: TrainConfig): void {
  const row = rows.find(([, isSet]) => isSet(config));
  if (row !== undefined) throw new ConfigError(`train options: this server cannot train with ${row[0]}; leave it out`);
}
