/** Durations of options, as in `90m`, `12h`, `30d`. Layer 6. */
import { InvalidArgumentError } from 'commander';

const unitMs: Readonly<Record<string, number>> = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Milliseconds. */
export function parseDuration(text: string): number {
  const [, count = '', unit = ''] = /^(\d{1,6})([smhd])$/.exec(text) ?? [];
  const ms = unitMs[unit];
  if (ms === undefined) throw new InvalidArgumentError('must be a number with s, m, h or d, as in 12h.');
  return Number(count) * ms;
}
