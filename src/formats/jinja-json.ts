/**
 * JSON text as Python reads it: an int stays an int of any size, `1.0` stays a float, keys keep their order. Layer 1.
 * `JSON.parse` loses all three, and a tool call that is rendered again would differ from what the policy wrote.
 */
import { Float, type Value } from './jinja-values.ts';

/** Null unless the text is a JSON object. */
export function parseJsonObject(text: string): Map<Value, Value> | null {
  try {
    const parsed = JSON.parse(text) as unknown; // what is valid is decided here
    if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return null;
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[-+.\w]+|[[\]{}:,]/gs) ?? [];
  let at = 0;
  const readValue = (): Value => {
    const token = tokens[at++] as string;
    if (token === '{') {
      const dict = new Map<Value, Value>();
      while (tokens[at] !== '}') {
        const key = JSON.parse(tokens[at] as string) as string;
        at += 2; // key and colon
        dict.set(key, readValue());
        if (tokens[at] === ',') at++;
      }
      at++;
      return dict;
    }
    if (token === '[') {
      const list: Value[] = [];
      while (tokens[at] !== ']') {
        list.push(readValue());
        if (tokens[at] === ',') at++;
      }
      at++;
      return list;
    }
    return readScalar(token);
  };
  return readValue() as Map<Value, Value>;
}

function readScalar(token: string): Value {
  if (/^-?\d+$/.test(token)) return Number.isSafeInteger(Number(token)) ? Number(token) + 0 : BigInt(token);
  if (/^[-\d]/.test(token)) return new Float(Number(token));
  return JSON.parse(token) as string | boolean | null;
}
