/**
 * The pre-tokenizers that llama.cpp has built in, by name, and which of them is a model's. Layer 5.
 * Source: llama.cpp src/llama-vocab.cpp; the regular expressions are those of the models' tokenizer.json files.
 * Left out: names that split as one of these does, and those of models that are not trained here.
 */
import { createTokenizer, type Tokenizer } from '../formats/tokenizer.ts';

export interface PreTokenizerChoice {
  /** `tokenizer.ggml.pre` */
  readonly name: string;
  /** Null if llama.cpp splits every text as the model does; else what differs. */
  readonly warning: string | null;
}

/** A pre_tokenizer of `tokenizer.json`, reduced to what changes how texts are split. */
type Steps = readonly (readonly [kind: 'split' | 'digits' | 'bytes', value: string])[];

const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const spaces = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
const words = '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+';
const upper = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const lower = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const cased = (end: string): string =>
  `[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${end}|[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${end}`;
const symbols = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*';
const symbolsOrSlash = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*';

const regex = (...parts: string[]): Steps => [
  ['split', parts.join('|')],
  ['bytes', ''],
];

/** The first of equal ones wins; `true` in the second place takes a word that is one token as that token, whatever the merges say. */
const known: readonly (readonly [name: string, ignoresMerges: boolean, steps: Steps])[] = [
  ['qwen2', false, regex(contractions, words, '\\p{N}', symbols, spaces)],
  ['llama-bpe', true, regex(contractions, words, '\\p{N}{1,3}', symbols, spaces)],
  ['dbrx', false, regex(contractions, words, '\\p{N}{1,3}', symbols, spaces)],
  [
    'smollm',
    false,
    [
      ['digits', ''],
      ['bytes', 'words'],
    ],
  ],
  ['gpt-2', false, [['bytes', 'words']]],
  ['tekken', true, regex(cased(''), '\\p{N}', symbolsOrSlash, spaces)],
  ['gpt-4o', false, regex(cased(`${contractions}?`), '\\p{N}{1,3}', symbolsOrSlash, spaces)],
];

/** Texts that pre-tokenizers split differently; each is compared alone, and so is the text of each of some thousand tokens. */
const commonProbes: readonly string[] = [
  'Hello world',
  ' Hello world',
  'a b c',
  ' x',
  'x',
  'A B C',
  'word',
  ' Word',
  'WORD',
  'camelCase',
  'aB',
  'XXO',
  'Abc Def',
  '1',
  '12',
  '123',
  '1234',
  '12345 67',
  ' 7',
  '3.14',
  '1,000',
  'a1b2',
  'x=1',
  'v2',
  "don't",
  "I'LL",
  "it's",
  "we'Ve",
  "'tis",
  '...',
  '!?',
  ' !',
  'a-b',
  'a_b',
  'a/b',
  '{"k": [1, 2]}',
  'f(x)',
  '<tag>',
  'C++',
  '$5',
  '#1',
  '@me',
  '100%',
  '\n',
  '\n\n',
  ' \n',
  'a\nb',
  'a \n b',
  '\t',
  '\tx',
  'a\tb',
  '  ',
  '   a',
  'a   b',
  'a  ',
  'end.\n\nNext',
  ':\n',
  ').\n',
  'café',
  'naïve',
  'Ångström',
  'über',
  'Привет мир',
  '你好',
  '日本語テスト',
  'สวัสดี',
  '한국어',
  'مرحبا',
  'हिन्दी',
  '🚀',
  'a🚀b',
  '½',
  '²',
  '١٢',
];

const mostTokenProbes = 2000;

/** The name for a tokenizer of byte-level BPE, given the value of its `tokenizer.json`. */
export function choosePreTokenizer(json: Readonly<Record<string, unknown>>): PreTokenizerChoice {
  const steps = toSteps(json.pre_tokenizer);
  const isIgnoring = (json.model as { ignore_merges?: unknown } | undefined)?.ignore_merges === true;
  if (steps !== null) {
    const same = known.filter(([, , candidate]) => JSON.stringify(candidate) === JSON.stringify(steps));
    const exact = same.find(([, ignores]) => ignores === isIgnoring) ?? (same.length === 1 ? same[0] : undefined);
    if (exact !== undefined) return { name: exact[0], warning: null };
  }
  return closest(json);
}

/** The one under which most probe texts get the same ids; never silently, since other texts may not. */
function closest(json: Readonly<Record<string, unknown>>): PreTokenizerChoice {
  const own = createTokenizer(json);
  const probes = [...commonProbes, ...tokenTexts(own)];
  let best: { readonly name: string; readonly different: readonly string[] } | null = null;
  for (const [name, ignoresMerges, steps] of known) {
    const model = { ...(json.model as object), ignore_merges: ignoresMerges };
    const other = createTokenizer({ ...json, model, pre_tokenizer: fromSteps(steps) });
    const different = probes.filter((text) => idsOf(own, text) !== idsOf(other, text));
    if (best === null || different.length < best.different.length) best = { name, different };
  }
  const { name, different } = best!;
  const count = `${probes.length - different.length} of ${probes.length} probe texts get the same ids`;
  const example = different.length === 0 ? '' : `, ${JSON.stringify(different[0])} does not`;
  return {
    name,
    warning: `llama.cpp has no pre-tokenizer like this model's; the closest is ${name}: ${count}${example}`,
  };
}

/** What tokens stand for, evenly from the whole vocabulary; parts of characters are left out. */
function tokenTexts(tokenizer: Tokenizer): string[] {
  const stride = Math.ceil(tokenizer.vocabSize / mostTokenProbes);
  const texts: string[] = [];
  for (let id = 0; id < tokenizer.vocabSize; id += stride) {
    if (tokenizer.specialIds.has(id)) continue;
    const text = tokenizer.tokenText(id);
    if (!text.includes('\ufffd')) texts.push(text);
  }
  return texts;
}

function idsOf(tokenizer: Tokenizer, text: string): string {
  try {
    return tokenizer.encode(text).join();
  } catch {
    return 'not encodable';
  }
}

/** Null for a step that llama.cpp has in none of its pre-tokenizers. */
function toSteps(json: unknown): Steps | null {
  const { type, pretokenizers } = (json ?? {}) as { type?: string; pretokenizers?: readonly unknown[] };
  const list = type === 'Sequence' ? (pretokenizers ?? []) : [json];
  const steps: (readonly ['split' | 'digits' | 'bytes', string])[] = [];
  for (const item of list) {
    const step = toStep(item);
    if (step === null) return null;
    steps.push(step);
  }
  return steps;
}

function toStep(json: unknown): Steps[number] | null {
  const step = (json ?? {}) as Record<string, unknown>;
  switch (step.type) {
    case 'Split': {
      const pattern = (step.pattern as { Regex?: unknown } | undefined)?.Regex;
      if (typeof pattern !== 'string' || step.behavior !== 'Isolated' || step.invert === true) return null;
      // Two spellings of one thing.
      return ['split', pattern.replaceAll(/(?<=\\p\{N\})\{1\}/g, '')];
    }
    case 'Digits':
      return step.individual_digits === true ? ['digits', ''] : null;
    case 'ByteLevel':
      return step.add_prefix_space === true ? null : ['bytes', step.use_regex === false ? '' : 'words'];
    default:
      return null;
  }
}

function fromSteps(steps: Steps): Record<string, unknown> {
  const pretokenizers = steps.map(([kind, value]) => {
    if (kind === 'split') return { type: 'Split', pattern: { Regex: value }, behavior: 'Isolated', invert: false };
    if (kind === 'digits') return { type: 'Digits', individual_digits: true };
    return { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: value === 'words' };
  });
  return { type: 'Sequence', pretokenizers };
}
