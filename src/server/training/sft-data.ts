/**
 * From conversations to training sequences: the ids that sampling would see and give. Layer 5.
 * A prompt is rendered and encoded up to the assistant's turn; the reply is what the template writes after it, up to the token that ends
 * the turn, which is learned too. A later turn continues the sequence as it continues a sampled conversation, reasoning kept; where the
 * template does not let it, it has a sequence of its own.
 */
import { ConfigError, DataError } from '../../core/errors.ts';
import type { SftConfig } from '../../core/sft-config.ts';
import type { Datum } from '../../engines/engine.ts';
import type { ChatTemplate, TemplateMessage, TemplateOptions } from '../../formats/chat-template.ts';
import type { Tokenizer } from '../../formats/tokenizer.ts';
import type { PlainConversation } from '../../wire/sft.ts';
import { toTemplateInput } from '../inference/template-input.ts';

export interface TextSide {
  readonly tokenizer: Pick<Tokenizer, 'encode' | 'tokenId' | 'tokenText' | 'eosId'>;
  readonly template: ChatTemplate;
}

/** Sequences of one conversation; null if one is longer than `maxTokens`. `index` names it in errors. Throws DataError, ConfigError. */
export function encodeConversation(
  conversation: PlainConversation,
  index: number,
  { tokenizer, template }: TextSide,
  config: Pick<SftConfig, 'trainOn' | 'templateVariables'>,
  maxTokens: number,
): Datum[] | null {
  const where = `conversations[${index}]`;
  const endId = endOfTurnId({ tokenizer, template });
  const inputOf = (count: number): ReturnType<typeof toTemplateInput> =>
    toTemplateInput(template, conversation.messages.slice(0, count), conversation.tools);
  const options: TemplateOptions = { tools: inputOf(0).tools, extra: config.templateVariables };
  const messagesOf = (count: number): readonly TemplateMessage[] => inputOf(count).messages;
  const turns = assistantTurns(conversation, config.trainOn);
  if (turns.length === 0) throw new DataError(`${where}.messages: must hold an assistant message, got none`);
  const sequences: Sequence[] = [];
  let previous: number | null = null;
  for (const position of turns) {
    const turn = `${where}.messages[${position}]`;
    const reply = renderReply(messagesOf, position, template, options, tokenizer.tokenText(endId), turn);
    const suffix =
      previous === null ? null : template.renderSuffix(messagesOf(previous + 1), messagesOf(position), options);
    const isContinued = suffix !== null && sequences.length > 0;
    const sequence = isContinued ? (sequences.at(-1) as Sequence) : createSequence();
    if (!isContinued) sequences.push(sequence);
    const prompt = isContinued ? (suffix as string) : reply.prompt;
    appendTurn(sequence, prompt, reply.text, isContinued ? endId : undefined, endId, tokenizer);
    previous = position;
  }
  return sequences.some(({ tokenIds }) => tokenIds.length > maxTokens) ? null : sequences.map(toDatum);
}

/** The token that closes an assistant's turn, as sampling has it. */
function endOfTurnId({ tokenizer, template }: TextSide): number {
  const id = (template.endOfTurn === null ? null : tokenizer.tokenId(template.endOfTurn)) ?? tokenizer.eosId;
  if (id === null) throw new ConfigError('sft: the model must have a token that ends a turn, got none');
  return id;
}

function assistantTurns({ messages }: PlainConversation, trainOn: SftConfig['trainOn']): number[] {
  const turns = [...messages.keys()].filter((position) => messages[position]?.role === 'assistant');
  return trainOn === 'last' ? turns.slice(-1) : turns;
}

interface Reply {
  readonly prompt: string;
  /** Without the token that ends it. */
  readonly text: string;
}

function renderReply(
  messagesOf: (count: number) => readonly TemplateMessage[],
  position: number,
  template: ChatTemplate,
  options: TemplateOptions,
  ending: string,
  where: string,
): Reply {
  const prompt = template.render({ ...options, messages: messagesOf(position), addGenerationPrompt: true });
  const whole = template.render({ ...options, messages: messagesOf(position + 1), addGenerationPrompt: false });
  const end = whole.lastIndexOf(ending);
  if (!whole.startsWith(prompt) || end < prompt.length) {
    throw new DataError(
      `${where}: the chat template must write the reply after the prompt and close it with ${JSON.stringify(ending)}, ` +
        `got ${JSON.stringify(whole.slice(-80))}`,
    );
  }
  return { prompt, text: whole.slice(prompt.length, end) };
}

interface Sequence {
  readonly tokenIds: number[];
  readonly actionMask: number[];
}

function createSequence(): Sequence {
  return { tokenIds: [], actionMask: [] };
}

/** Adds prompt and reply. Ids of the reply are those it has after the prompt, unless both together are other tokens. */
function appendTurn(
  sequence: Sequence,
  prompt: string,
  reply: string,
  afterId: number | undefined,
  endId: number,
  tokenizer: TextSide['tokenizer'],
): void {
  const promptIds = tokenizer.encode(prompt, { afterId });
  const together = tokenizer.encode(prompt + reply, { afterId });
  const isPrefix = promptIds.every((id, t) => id === together[t]);
  const replyIds = isPrefix ? together.slice(promptIds.length) : tokenizer.encode(reply);
  for (const id of promptIds) add(sequence, id, 0);
  for (const id of [...replyIds, endId]) add(sequence, id, 1);
}

function add({ tokenIds, actionMask }: Sequence, id: number, mask: number): void {
  // Nothing predicts the first token.
  actionMask.push(tokenIds.length === 0 ? 0 : mask);
  tokenIds.push(id);
}

function toDatum({ tokenIds, actionMask }: Sequence): Datum {
  const zeros = tokenIds.map(() => 0);
  return { tokenIds, actionMask, samplingLogprobs: zeros, advantages: zeros, temperatures: tokenIds.map(() => 1) };
}
