/** Limits on the JSON of a request beyond its bytes, checked before schemas walk through it. Layer 5. */
import { refuse } from '../../wire/errors.ts';

/** Schemas recurse: text that nests deeper would end their stack. Tool schemas of real agents stay below 30. */
export const maxJsonDepth = 100;

/** Of one conversation. */
export const maxMessages = 10_000;

/** Throws ApiError 400 for objects and arrays that nest too deep. Linear in the text, before it is parsed. */
export function checkJsonDepth(text: string): void {
  let depth = 0;
  let isString = false;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (isString) {
      if (code === backslash) i += 1;
      else if (code === quote) isString = false;
    } else if (code === quote) isString = true;
    else if (code === openBrace || code === openBracket) {
      depth += 1;
      if (depth > maxJsonDepth) {
        throw refuse(400, 'invalid_json', `body: must nest at most ${maxJsonDepth} deep, got more at character ${i}`);
      }
    } else if (code === closeBrace || code === closeBracket) depth -= 1;
  }
}

/** Throws ApiError 400 for a conversation of too many messages (`messages`; `input` of the Responses API). */
export function checkMessageCount(body: unknown): void {
  if (typeof body !== 'object' || body === null) return;
  for (const field of ['messages', 'input'] as const) {
    const list: unknown = Reflect.get(body, field);
    if (!Array.isArray(list) || list.length <= maxMessages) continue;
    throw refuse(400, 'invalid_value', `${field}: must have at most ${maxMessages} entries, got ${list.length}`, field);
  }
}

const quote = 0x22;
const backslash = 0x5c;
const openBrace = 0x7b;
const closeBrace = 0x7d;
const openBracket = 0x5b;
const closeBracket = 0x5d;
