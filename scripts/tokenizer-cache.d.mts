export type RealTokenizer = 'qwen3' | 'llama3_1' | 'llama2' | 'gemma3';

export interface TokenizerSource {
  readonly title: string;
  readonly package: string;
  readonly version: string;
  readonly files: Readonly<Record<string, string>>;
}

export const realTokenizers: Readonly<Record<RealTokenizer, TokenizerSource>>;
export function tokenizerFolder(name: RealTokenizer): string;
export function cachedTokenizer(name: RealTokenizer): string | null;
