/**
 * xgrammar in this process: one WebAssembly instance with the vocabulary of a tokenizer. Layer 3.
 * The package's own file is read as CommonJS: it is published as an ES module, but written so that only CommonJS can load it. Nothing
 * is fetched: the binary is part of the file. Source: mlc-ai/xgrammar, web/src/xgrammar.ts.
 */
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { compileFunction } from 'node:vm';
import type * as XGrammar from '@mlc-ai/web-xgrammar';
import { EngineError } from '../../core/errors.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import { symbolOfByte } from '../../formats/tokenizer-bytes.ts';

export type Matcher = XGrammar.GrammarMatcher;
export type CompiledGrammar = XGrammar.CompiledGrammar;

/** Compiles structural tags for one vocabulary. After a failure it must not be used again: WebAssembly is left as the failure left it. */
export class GrammarLibrary {
  /** Bit of the mask that tells whether the text may end: an id behind the vocabulary. */
  readonly endId: number;
  readonly #module: typeof XGrammar;
  readonly #compiler: XGrammar.GrammarCompiler;
  readonly #info: XGrammar.TokenizerInfo;

  private constructor(
    module: typeof XGrammar,
    compiler: XGrammar.GrammarCompiler,
    info: XGrammar.TokenizerInfo,
    endId: number,
  ) {
    this.#module = module;
    this.#compiler = compiler;
    this.#info = info;
    this.endId = endId;
  }

  /** For ids below `vocabSize`. Every token counts as the bytes that it decodes to; special ones too, whose use the caller restricts. */
  static async load(tokenizer: Tokenizer, vocabSize: number): Promise<GrammarLibrary> {
    const module = await loadModule();
    const tokens = Array.from({ length: vocabSize }, (_, id) => writtenBytes(tokenizer, id));
    // The end is a token of its own, so that each request can have other stop tokens; the empty text is that of no token.
    const info = await module.TokenizerInfo.createTokenizerInfo([...tokens, ''], 'byte_level', false, vocabSize + 1, [
      vocabSize,
    ]);
    const compiler = await module.GrammarCompiler.createGrammarCompiler(info, false);
    return new GrammarLibrary(module, compiler, info, vocabSize);
  }

  async compile(structuralTag: string): Promise<CompiledGrammar> {
    const grammar = await this.#compiler.compileStructuralTag(structuralTag);
    // A matcher asks for it, and its own answer would be memory of WebAssembly that nobody frees.
    grammar.tokenizerInfo = () => this.#info;
    return grammar;
  }

  createMatcher(grammar: CompiledGrammar): Promise<Matcher> {
    return this.#module.GrammarMatcher.createGrammarMatcher(grammar);
  }
}

/** GPT-2's writing of the token's bytes; '' for an id without token. */
function writtenBytes(tokenizer: Tokenizer, id: number): string {
  let text = '';
  for (const byte of tokenBytes(tokenizer, id)) text += symbolOfByte[byte];
  return text;
}

/** None for an id without token. */
export function tokenBytes(tokenizer: Tokenizer, id: number): Uint8Array {
  try {
    return tokenizer.tokenBytes(id);
  } catch {
    return new Uint8Array(); // A hole of the vocabulary.
  }
}

async function loadModule(): Promise<typeof XGrammar> {
  const require = createRequire(import.meta.url);
  const path = require.resolve('@mlc-ai/web-xgrammar');
  const module: { exports: Partial<typeof XGrammar> } = { exports: {} };
  // Its one import() is of a module that `require` has too; node:vm would need an experimental option for it, and warn.
  const text = (await readFile(path, 'utf8')).replace("import('module')", "require('module')");
  const run = compileFunction(text, ['exports', 'module', 'require', '__filename'], { filename: path });
  run(module.exports, module, createRequire(path), path);
  const loaded = module.exports;
  if (!loaded.GrammarCompiler)
    throw new EngineError('constraint: @mlc-ai/web-xgrammar must export GrammarCompiler, got none');
  return loaded as typeof XGrammar;
}
