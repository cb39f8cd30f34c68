/** The text side of a base model: tokenizer, chat template and configuration, checked against each other. Layer 5. */
import { ConfigError, DataError } from '../../core/errors.ts';
import { type ChatTemplate, createChatTemplate } from '../../formats/chat-template.ts';
import type { DecoderConfig } from '../../formats/hf-config.ts';
import { openModel } from '../../formats/model-source.ts';
import type { Tokenizer, TokenizerConfig } from '../../formats/tokenizer.ts';
import type { ModelFiles } from './open-training-run.ts';

/** `chatTemplate` takes the place of the model's own. Throws ConfigError, DataError. */
export async function loadModelFiles(path: string, chatTemplate?: string): Promise<ModelFiles> {
  const { config, tokenizerConfig, loadTokenizer } = await openModel(path);
  const tokenizer = await loadTokenizer();
  checkVocabulary(tokenizer, config, path);
  const isMissing = chatTemplate === undefined && (tokenizerConfig.chat_template ?? null) === null;
  const template = isMissing
    ? createMissingTemplate(path)
    : openTemplate(
        path,
        chatTemplate === undefined ? tokenizerConfig : { ...tokenizerConfig, chat_template: chatTemplate },
        [tokenizer.eosId, ...config.eosTokenId].flatMap((id) => tokenContent(tokenizer, id)),
      );
  return { tokenizer, template, config };
}

/** Text of a token that may end a turn; none if the tokenizer does not have it. */
function tokenContent(tokenizer: Tokenizer, id: number | null): readonly string[] {
  return id !== null && isToken(tokenizer, id) ? [tokenizer.tokenText(id)] : [];
}

/**
 * Throws ConfigError if the tokenizer may write ids that the embedding has no row for. Special tokens beyond its end are let pass, since
 * Gemma 3 has one (for images); a text that names one is refused when it comes.
 */
function checkVocabulary(tokenizer: Tokenizer, config: DecoderConfig, path: string): void {
  const beyond = Array.from(
    { length: Math.max(0, tokenizer.vocabSize - config.vocabSize) },
    (_, i) => config.vocabSize + i,
  );
  const wrong = beyond.filter((id) => !tokenizer.specialIds.has(id) && isToken(tokenizer, id));
  if (wrong.length === 0) return;
  throw new ConfigError(
    `${path}: the tokenizer must be that of the model, whose embedding has ${config.vocabSize} rows (vocab_size), got ` +
      `${wrong.length} tokens beyond them, such as ${wrong[0]}; the highest id is ${tokenizer.vocabSize - 1}`,
    { details: { code: 'vocabulary_mismatch', param: 'base_model' } },
  );
}

/** `createChatTemplate`, whose errors do not know where the template is from. */
function openTemplate(path: string, config: TokenizerConfig, endings: readonly string[]): ChatTemplate {
  try {
    return createChatTemplate(config, endings, path);
  } catch (cause) {
    if (!(cause instanceof DataError)) throw cause;
    throw new DataError(`${path}: ${cause.message}`, { cause, details: { param: 'base_model' } });
  }
}

function isToken(tokenizer: Tokenizer, id: number): boolean {
  try {
    tokenizer.tokenBytes(id);
    return true;
  } catch (error) {
    if (error instanceof DataError) return false;
    throw error;
  }
}

/** Stands in where a model has none: chat is refused with what to do, the rest works. */
function createMissingTemplate(path: string): ChatTemplate {
  const refuse = (): never => {
    throw new DataError(
      `chat template: ${path} has none, so messages cannot be rendered; put a chat_template.jinja there, or register the ` +
        'model with a chatTemplate (art serve --chat-template FILE)',
      { details: { code: 'chat_template_missing', param: 'messages' } },
    );
  };
  return { render: refuse, renderSuffix: refuse, endOfTurn: null, toolFormat: null, reasoning: null };
}
