/** Options that callers give as plain objects. Layer 0. */
import { ConfigError } from './errors.ts';

/** Throws ConfigError that names every key of `value` outside `known`: a misspelt option is never dropped silently. */
export function refuseUnknownKeys(what: string, value: object, known: readonly string[]): void {
  const unknown = Object.keys(value).filter((key) => !known.includes(key));
  if (unknown.length > 0) {
    throw new ConfigError(`${what}: known options are ${known.join(', ')}; got ${unknown.join(', ')}`, {
      details: { unknown, known },
    });
  }
}

/** Throws ConfigError that names the first of these options which is no integer of at least `least`. */
export function requireIntegers(what: string, options: Readonly<Record<string, number>>, least: number): void {
  for (const [name, value] of Object.entries(options)) {
    if (Number.isSafeInteger(value) && value >= least) continue;
    throw new ConfigError(`${what}: ${name} must be an integer from ${least}, got ${value}`);
  }
}
