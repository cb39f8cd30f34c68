/**
 * Chat templates: messages to the text that the model was trained on. Layer 1. The language is `@huggingface/jinja`.
 * Source: transformers utils/chat_template_utils.py (variables, choice among named templates).
 * Left out: templates that read the clock (`strftime_now`) are not made deterministic; pass `extra.date_string`.
 */
import { Template } from '@huggingface/jinja';
import { ConfigError, DataError, messageOf } from '../core/errors.ts';
import { namedToken, type TokenizerConfig } from './tokenizer.ts';

interface MessageRole {
  readonly role: string;
}

/** A chat message in OpenAI's shape; what else it holds (content, tool_calls, …) is the template's business. */
export type TemplateMessage = MessageRole | (MessageRole & Readonly<Record<string, unknown>>);

export interface TemplateOptions {
  /** OpenAI tool definitions. */
  readonly tools?: readonly object[] | undefined;
  /** Further variables of the template, e.g. `{ enable_thinking: false }`. */
  readonly extra?: Readonly<Record<string, unknown>> | undefined;
}

export interface RenderOptions extends TemplateOptions {
  readonly messages: readonly TemplateMessage[];
  /** Ends with the header of an assistant message, to be continued by the policy. */
  readonly addGenerationPrompt: boolean;
}

export interface ChatTemplate {
  /**
   * The text of a conversation. Arguments of tool calls that are JSON text are handed over as objects, as vLLM does.
   * Throws DataError with the template's own message.
   */
  readonly render: (options: RenderOptions) => string;
  /**
   * The text to append to a conversation whose ids end AT the end-of-turn token of `previousMessages`' last message, an
   * assistant's, so that it becomes `messages` plus the generation prompt. What the template writes between that token
   * and the next message belongs to it: with ChatML the suffix begins with the newline after `<|im_end|>`, because the
   * policy stops at `<|im_end|>` and never samples the newline.
   * Null when the full text does not begin with the previous one (a template that rewrites history) or the template does
   * not close the turn with the end-of-turn token: render and encode the whole conversation then.
   * Throws DataError if the last previous message is not an assistant's.
   */
  readonly renderSuffix: (
    previousMessages: readonly TemplateMessage[],
    messages: readonly TemplateMessage[],
    options?: TemplateOptions,
  ) => string | null;
}

/**
 * The chat template of a `tokenizer_config.json`. `endOfTurn` is the token that closes an assistant message, by default
 * the `eos_token`. Throws ConfigError if there is none, DataError if it does not compile.
 */
export function createChatTemplate(
  config: TokenizerConfig,
  endOfTurn: string | null = namedToken(config, 'eos_token'),
): ChatTemplate {
  const sources = templateSources(config);
  const compiled = new Map([...sources].map(([name, source]) => [name, compile(source)]));
  const named = Object.keys(config).filter((key) => /^(bos|eos|pad|unk)_token$/.test(key));
  const tokens = Object.fromEntries(named.map((key) => [key, namedToken(config, key) ?? '']));
  const render = (options: RenderOptions): string => {
    const tools = options.tools !== undefined && options.tools.length > 0 ? options.tools : null;
    const template = (tools && compiled.get('tool_use')) ?? compiled.get('default');
    try {
      return template?.render({
        ...tokens,
        ...options.extra,
        messages: options.messages.map(parseToolArguments),
        tools,
        documents: null,
        add_generation_prompt: options.addGenerationPrompt,
      }) as string;
    } catch (cause) {
      throw new DataError(`chat template: ${messageOf(cause)}`, { cause });
    }
  };
  return {
    render,
    renderSuffix: (previousMessages, messages, options = {}) => {
      const role = previousMessages.at(-1)?.role;
      if (role !== 'assistant') {
        throw new DataError(`chat template: previous messages must end with an assistant's, got ${role ?? 'none'}`);
      }
      if (endOfTurn === null) return null;
      const previous = render({ ...options, messages: previousMessages, addGenerationPrompt: false });
      const end = previous.lastIndexOf(endOfTurn) + endOfTurn.length;
      if (end < endOfTurn.length || previous.slice(end).trim() !== '') return null;
      const full = render({ ...options, messages, addGenerationPrompt: true });
      return full.startsWith(previous) ? full.slice(end) : null;
    },
  };
}

/** One template under 'default', or the named ones of a list. */
function templateSources(config: TokenizerConfig): ReadonlyMap<string, string> {
  const value = config.chat_template;
  if (typeof value === 'string') return new Map([['default', value]]);
  const sources = new Map<string, string>();
  for (const entry of Array.isArray(value) ? (value as unknown[]) : []) {
    const { name, template } = entry as { name?: unknown; template?: unknown };
    if (typeof name === 'string' && typeof template === 'string') sources.set(name, template);
  }
  if (!sources.has('default')) {
    throw new ConfigError('tokenizer_config.json: must have a chat_template, as text or a list with one named default');
  }
  return sources;
}

function compile(source: string): Template {
  try {
    return new Template(source);
  } catch (cause) {
    throw new DataError(`chat template: must compile, got ${messageOf(cause)}`, { cause });
  }
}

interface ToolCall {
  readonly function?: { readonly arguments?: unknown };
}

function parseToolArguments(message: TemplateMessage): TemplateMessage {
  const { tool_calls: calls } = message as { tool_calls?: readonly ToolCall[] | null };
  if (!Array.isArray(calls)) return message;
  const parsed = (calls as readonly ToolCall[]).map((call) => {
    const text = call.function?.arguments;
    if (typeof text !== 'string') return call;
    const value = parseObject(text);
    return value === null ? call : { ...call, function: { ...call.function, arguments: value } };
  });
  return { ...message, tool_calls: parsed } as TemplateMessage;
}

/** Null unless the text is a JSON object: a malformed call of the policy is rendered as it was written. */
function parseObject(text: string): object | null {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}
