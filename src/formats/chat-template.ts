/**
 * Chat templates: messages to the text that the model was trained on. Layer 1. `jinja.ts` renders them as Python does.
 * Source: transformers utils/chat_template_utils.py and tokenization_utils_base.py (variables, names of reasoning, choice among
 * named templates); vLLM entrypoints/chat_utils.py (arguments of tool calls, content of an assistant that has none).
 * Left out: continuing the final message, documents that are not plain data, images.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import { compileJinja } from './jinja.ts';
import { parseJsonObject } from './jinja-json.ts';
import { chooseReasoningFormat, type ReasoningFormat } from './reasoning-format.ts';
import { namedToken, type TokenizerConfig } from './tokenizer.ts';
import { chooseToolFormat } from './tool-formats/choose-format.ts';
import type { ToolFormat } from './tool-formats/tool-format.ts';

interface MessageRole {
  readonly role: string;
}

/** A chat message in OpenAI's shape; what else it holds (content, tool_calls, …) is the template's business. */
export type TemplateMessage = MessageRole | (MessageRole & Readonly<Record<string, unknown>>);

export interface TemplateOptions {
  /** OpenAI tool definitions. */
  readonly tools?: readonly object[] | undefined;
  /** Texts to answer from, as `{ title, text }`. */
  readonly documents?: readonly object[] | undefined;
  /** Further variables of the template, e.g. `{ enable_thinking: false }`. */
  readonly extra?: Readonly<Record<string, unknown>> | undefined;
  /** What a template that writes the date (`strftime_now`) reads; by default the clock. */
  readonly now?: Date | undefined;
}

export interface RenderOptions extends TemplateOptions {
  readonly messages: readonly TemplateMessage[];
  /** Ends with the header of an assistant message, to be continued by the policy. */
  readonly addGenerationPrompt: boolean;
}

export interface ChatTemplate {
  /**
   * The text of a conversation. Arguments of tool calls that are JSON text are handed over as objects, as vLLM does; numbers in them
   * are written as they were.
   * Throws DataError with the template's own message.
   */
  readonly render: (options: RenderOptions) => string;
  /** The token that closes an assistant message; null if it is none of those that may. */
  readonly endOfTurn: string | null;
  /** How the policy is told to call tools; null if the template has no tools, or writes calls in a form that no parser reads. */
  readonly toolFormat: ToolFormat | null;
  /** The marks of reasoning that the template knows; null if there are none. */
  readonly reasoning: ReasoningFormat | null;
  /**
   * The text to append to a conversation whose ids end AT the end-of-turn token of `previousMessages`' last message, an
   * assistant's, so that it becomes `messages` plus the generation prompt. `previousMessages` are the first of `messages`. What the
   * template writes between that token and the next message belongs to it: with ChatML the suffix begins with the newline after
   * `<|im_end|>`, because the policy stops at `<|im_end|>` and never samples the newline.
   * It is found with a stand-in for what the assistant said, so that it does not matter how the template writes that.
   * Null when the template does not write the message, does not close it with an end-of-turn token, or writes what follows
   * differently for different messages: render and encode the whole conversation then.
   * Throws DataError if the last previous message is not an assistant's.
   */
  readonly renderSuffix: (
    previousMessages: readonly TemplateMessage[],
    messages: readonly TemplateMessage[],
    options?: TemplateOptions,
  ) => string | null;
}

/**
 * The chat template of a `tokenizer_config.json`. `endOfTurn` is the token that closes an assistant message, or the ones that may; by
 * default the `eos_token`. `source` names the file in errors. Throws ConfigError if there is no template, DataError if it does not
 * compile.
 */
export function createChatTemplate(
  config: TokenizerConfig,
  endOfTurn: string | readonly string[] | null = namedToken(config, 'eos_token'),
  source = 'tokenizer_config.json',
): ChatTemplate {
  const sources = templateSources(config, source);
  const compiled = new Map([...sources].map(([name, text]) => [name, compileJinja(text)]));
  const tokens = templateTokens(config);
  const endings = (typeof endOfTurn === 'string' ? [endOfTurn] : (endOfTurn ?? [])).filter((token) => token !== '');
  const render = (options: RenderOptions): string => {
    const tools = options.tools !== undefined && options.tools.length > 0 ? options.tools : null;
    const template = (tools && compiled.get('tool_use')) ?? compiled.get('default');
    const variables = {
      ...tokens,
      ...options.extra,
      messages: options.messages.map(prepareMessage),
      tools,
      documents: options.documents ?? null,
      add_generation_prompt: options.addGenerationPrompt,
    };
    // templateSources has seen to it that there is a default.
    return (template as NonNullable<typeof template>)(variables, options.now);
  };
  return {
    render,
    endOfTurn: findEndOfTurn(render, endings),
    toolFormat: chooseToolFormat(render),
    reasoning: chooseReasoningFormat([...sources.values()].join('\n')),
    renderSuffix: (previousMessages, messages, options = {}) => {
      const last = previousMessages.at(-1);
      if (last?.role !== 'assistant') {
        throw new DataError(
          `chat template: previous messages must end with an assistant's, got ${last?.role ?? 'none'}`,
        );
      }
      const full = render({ ...options, messages, addGenerationPrompt: true });
      const marker = unusedMarker(full);
      const marked = messages.with(previousMessages.length - 1, standIn(last, marker));
      const text = render({ ...options, messages: marked, addGenerationPrompt: true });
      const place = text.lastIndexOf(marker);
      if (place < 0) return null;
      // Behind the marker only the rest of the call may stand before the token.
      const rest = text.slice(place + marker.length);
      const [end, token] = firstOf(rest, endings);
      const suffix = rest.slice(end + token.length);
      const isClosed = token !== '' && ('tool_calls' in last || rest.slice(0, end).trim() === '');
      return isClosed && full.endsWith(token + suffix) ? suffix : null;
    },
  };
}

/** A text of letters that does not occur. */
function unusedMarker(text: string): string {
  let marker = 'standin';
  while (text.includes(marker)) marker += 'x';
  return marker;
}

/** The message with the marker as the last text that a template writes of it: its content, or an argument of its last call. */
function standIn(message: TemplateMessage, marker: string): TemplateMessage {
  const { tool_calls: calls } = message as { readonly tool_calls?: readonly ToolCall[] };
  const call = calls?.at(-1);
  if (calls === undefined || call === undefined) return { role: message.role, content: marker };
  const marked = { ...call, function: { ...call.function, arguments: { [marker]: marker } } };
  return { ...message, tool_calls: calls.with(-1, marked) };
}

/** The token that occurs first, and where; '' if none does. */
function firstOf(text: string, tokens: readonly string[]): readonly [place: number, token: string] {
  const found = tokens.map((token) => [text.indexOf(token), token] as const).filter(([place]) => place >= 0);
  return found.reduce((first, other) => (other[0] < first[0] ? other : first), [text.length, ''] as const);
}

/** Null if the template does not render a plain turn, or closes it with none of the tokens. */
function findEndOfTurn(render: ChatTemplate['render'], endings: readonly string[]): string | null {
  const marker = '\u0001';
  const messages = [
    { role: 'user', content: 'a' },
    { role: 'assistant', content: marker },
  ];
  try {
    const text = render({ messages, addGenerationPrompt: false });
    const after = text.slice(text.lastIndexOf(marker) + marker.length).trimStart();
    return text.includes(marker) ? (endings.find((token) => after.startsWith(token)) ?? null) : null;
  } catch {
    return null;
  }
}

/** Tokens that transformers gives to templates under their names; one that the model does not have stays undefined. */
function templateTokens(config: TokenizerConfig): Readonly<Record<string, string>> {
  const extra = config.extra_special_tokens;
  const isExtra = typeof extra === 'object' && extra !== null && !Array.isArray(extra);
  const all: TokenizerConfig = isExtra ? { ...extra, ...config } : config;
  const names = [...(isExtra ? Object.keys(extra) : []), 'bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'];
  const pairs = names.flatMap((name) => {
    const key = name.endsWith('_token') ? name : `${name}_token`;
    const content = namedToken(all, key);
    return content === null ? [] : [[key, content] as const];
  });
  return Object.fromEntries(pairs);
}

/** One template under 'default', or the named ones of a list. */
function templateSources(config: TokenizerConfig, source: string): ReadonlyMap<string, string> {
  const value = config.chat_template;
  if (typeof value === 'string') return new Map([['default', value]]);
  const sources = new Map<string, string>();
  for (const entry of Array.isArray(value) ? (value as unknown[]) : []) {
    const { name, template } = (entry ?? {}) as { name?: unknown; template?: unknown };
    if (typeof name === 'string' && typeof template === 'string') sources.set(name, template);
  }
  if (!sources.has('default')) {
    const got = value === undefined || value === null ? 'none' : `names ${[...sources.keys()].join(', ') || 'none'}`;
    throw new ConfigError(`${source}: must have a chat_template, as text or a list with one named default, got ${got}`);
  }
  return sources;
}

interface ToolCall {
  readonly function?: { readonly arguments?: unknown };
}

const reasoningFields = ['reasoning_content', 'thinking', 'reasoning'];

/**
 * A message as templates know it. Fields that are null are left out, reasoning is found under the name that templates read, an
 * assistant without content has an empty one, and arguments of tool calls that are the text of a JSON object become one.
 */
function prepareMessage(message: TemplateMessage): Readonly<Record<string, unknown>> {
  const given = Object.entries(message).filter(([, value]) => value !== null && value !== undefined);
  const fields: Record<string, unknown> = Object.fromEntries(given);
  const reasoning = reasoningFields.map((name) => fields[name]).find((value) => value !== undefined);
  const calls = fields.tool_calls;
  return {
    ...(reasoning === undefined ? {} : { thinking: reasoning }),
    ...fields,
    ...(message.role === 'assistant' && fields.content === undefined ? { content: '' } : {}),
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(Array.isArray(calls) ? { tool_calls: (calls as ToolCall[]).map(parseArguments) } : {}),
  };
}

/** A malformed call of the policy is rendered as it was written. */
function parseArguments(call: ToolCall): ToolCall {
  const text = call.function?.arguments;
  const value = typeof text === 'string' ? parseJsonObject(text) : null;
  return value === null ? call : { ...call, function: { ...call.function, arguments: value } };
}
