/**
 * Message histories as keys that stay the same when a client's framework writes an assistant's message anew. Layer 5.
 * Of what a policy said count the text without white space around it, and the names and arguments of its calls, as JSON values. Not
 * its reasoning, nor what calls are named by, nor whether text and calls are one message or several. All else counts exactly.
 */
import { hash } from 'node:crypto';
import type { PlainMessage, ToolCall } from '../../core/chat.ts';
import { canonicalJson } from '../../core/json.ts';
import type { ReasoningFormat } from '../../formats/reasoning-format.ts';

export interface HistoryKeys {
  /** Of the history that ends at each message. */
  readonly each: readonly string[];
  /** The same where assistants' messages in a row are one; null inside such a row. */
  readonly joined: readonly (string | null)[];
}

/** `start` stands for what else the prompt depends on. */
export function historyKeys(
  start: string,
  messages: readonly PlainMessage[],
  reasoning: ReasoningFormat | null,
): HistoryKeys {
  const callNames = new Map<string, string>();
  const each: string[] = [];
  const joined: (string | null)[] = [];
  let row: PlainMessage[] = [];
  /** Messages so far, those in a row as one. */
  let count = 0;
  let key = start;
  let joinedKey = start;
  for (const [index, message] of messages.entries()) {
    key = nextKey(key, message, reasoning, callNames);
    each.push(key);
    if (message.role === 'assistant') row.push(message);
    if (message.role === 'assistant' && messages[index + 1]?.role === 'assistant') {
      joined.push(null);
      continue;
    }
    const whole = row.length > 0 ? joinMessages(row) : message;
    joinedKey = nextKey(joinedKey, whole, reasoning, callNames);
    joined.push(joinedKey);
    row = [];
    for (const [place, call] of (whole.toolCalls ?? []).entries()) callNames.set(call.id, `${count} ${place}`);
    count += 1;
  }
  return { each, joined };
}

/** `callNames`: what calls so far are known as, by their ids, which a framework may change. */
export function nextKey(
  key: string,
  message: PlainMessage,
  reasoning: ReasoningFormat | null,
  callNames: ReadonlyMap<string, string> = new Map(),
): string {
  const { role, content, name, tool_call_id: id, toolCalls = [] } = message;
  const said =
    role === 'assistant'
      ? [withoutReasoning(content, reasoning).trim(), toolCalls.map((call) => [call.name, canonicalArguments(call)])]
      : [content, name, id === undefined ? undefined : (callNames.get(id) ?? id)];
  return hash('sha256', JSON.stringify([key, role, said]), 'base64');
}

/** Assistants' messages in a row as one. */
export function joinMessages(messages: readonly PlainMessage[]): PlainMessage {
  const texts = messages.map(({ content }) => content.trim()).filter((text) => text !== '');
  const toolCalls = messages.flatMap((message) => message.toolCalls ?? []);
  return { role: 'assistant', content: texts.join('\n'), ...(toolCalls.length > 0 && { toolCalls }) };
}

/** All messages, with assistants' in a row as one. */
export function joinRows(messages: readonly PlainMessage[]): readonly PlainMessage[] {
  const rows: PlainMessage[][] = [];
  for (const message of messages) {
    const row = rows.at(-1);
    if (message.role === 'assistant' && row?.[0]?.role === 'assistant') row.push(message);
    else rows.push([message]);
  }
  return rows.map((row) => (row.length === 1 ? (row[0] as PlainMessage) : joinMessages(row)));
}

/** Clients that know no field for reasoning may put it before the text, in its marks. */
function withoutReasoning(content: string, reasoning: ReasoningFormat | null): string {
  if (reasoning === null || !content.trimStart().startsWith(reasoning.begin)) return content;
  const end = content.indexOf(reasoning.end);
  return end < 0 ? content : content.slice(end + reasoning.end.length);
}

/** JSON with sorted keys and numbers as JavaScript writes them. What is no JSON, or too deep for the stack, stays as it is. */
function canonicalArguments({ arguments: text }: ToolCall): string {
  if (text.trim() === '') return '{}';
  try {
    return canonicalJson(JSON.parse(text));
  } catch {
    return text.trim();
  }
}
