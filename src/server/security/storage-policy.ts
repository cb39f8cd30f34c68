/**
 * What of a conversation may be written to the disk, and in which form. Layer 5. Training reads memory, so it sees the whole text.
 * Token ids are text too: ids of a text that redaction would change are not kept, and with `store: 'none'` none are.
 */
import { ConfigError } from '../../core/errors.ts';
import { refuseUnknownKeys } from '../../core/options.ts';
import { finders, type PatternName, patternNames } from './redaction-patterns.ts';

export interface RedactOptions {
  /** Built-in patterns; default all. */
  readonly patterns?: readonly PatternName[];
  /**
   * Called with every text after the patterns; what they return is stored. One that throws keeps the text from being stored, and the
   * call that would have stored it fails.
   */
  readonly functions?: readonly ((text: string) => string)[];
}

export interface StorageOptions {
  /** `none`: no message, reply, metadata or log of a trajectory reaches the disk; rewards, metrics and weights do. Default `all`. */
  readonly store?: 'all' | 'none';
  /** True: all built-in patterns. Default false. */
  readonly redact?: boolean | RedactOptions;
}

export interface StoragePolicy {
  readonly isTextStored: boolean;
  /** The value with every text in it, keys of objects too, as it may be stored. */
  readonly redact: <T>(value: T) => T;
  /** Whether token ids that stand for a text may be stored: redaction leaves it as it is. The text is made only if that is needed. */
  readonly mayStoreTokens: (readText: () => string) => boolean;
}

export const storageOptionNames = ['store', 'redact'] as const;

/** Throws ConfigError on an unknown pattern or option. */
export function createStoragePolicy({ store = 'all', redact = false }: StorageOptions = {}): StoragePolicy {
  if (store !== 'all' && store !== 'none') {
    throw new ConfigError(`store: must be all or none, got ${JSON.stringify(store)}`);
  }
  const isTextStored = store === 'all';
  if (redact === false) return { isTextStored, redact: (value) => value, mayStoreTokens: () => isTextStored };
  const redactText = createTextRedactor(redact === true ? {} : redact);
  return {
    isTextStored,
    redact: <T>(value: T): T => mapTexts(value, redactText) as T,
    mayStoreTokens: (readText) => {
      if (!isTextStored) return false;
      const text = readText();
      return redactText(text) === text;
    },
  };
}

function createTextRedactor(options: RedactOptions): (text: string) => string {
  refuseUnknownKeys('redact', options, ['patterns', 'functions']);
  const { patterns = patternNames, functions = [] } = options;
  const unknown = patterns.filter((name) => !patternNames.includes(name));
  if (unknown.length > 0) {
    throw new ConfigError(`redact.patterns: known are ${patternNames.join(', ')}; got ${unknown.join(', ')}`);
  }
  const chosen = patternNames.filter((name) => patterns.includes(name));
  return (text) => {
    const replaced = chosen.reduce(replaceFinds, text);
    return functions.reduce((current, change) => {
      const changed: unknown = change(current);
      if (typeof changed === 'string') return changed;
      throw new ConfigError(`redact.functions: must return a string, got ${typeof changed}`);
    }, replaced);
  };
}

function replaceFinds(text: string, name: PatternName): string {
  const parts: string[] = [];
  let done = 0;
  for (const [from, to] of finders[name](text)) {
    parts.push(text.slice(done, from), `[redacted:${name}]`);
    done = to;
  }
  return done === 0 ? text : parts.join('') + text.slice(done);
}

/** JSON-like values; anything else is left as it is. */
function mapTexts(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === 'string') return change(value);
  if (Array.isArray(value)) return value.map((item) => mapTexts(item, change));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [change(key), mapTexts(item, change)]));
}

/** Everything as it is: the default. */
export const keepEverything: StoragePolicy = createStoragePolicy();
