/** JSON as judges get and give it: names given twice, text that cannot leave its tag, hashes. Layer 5. */
import { createHash } from 'node:crypto';

export function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/**
 * JSON text on one line that holds no `<`, `>` or `&`: inside a tag of a prompt it can neither close the tag nor open another. A parser of
 * JSON reads the same value.
 */
export function tagSafeJson(value: unknown): string {
  return (JSON.stringify(value) ?? 'null').replaceAll(
    /[<>&\u2028\u2029]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Whether an object anywhere in valid JSON text has the same name twice: `JSON.parse` would keep the last one in silence. */
export function hasRepeatedName(text: string): boolean {
  const open: (Set<string> | null)[] = [];
  for (const { 0: token } of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"(?:\s*:)?|[{}[\]]/gs)) {
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(null);
    else if (token === '}' || token === ']') open.pop();
    else if (token.endsWith(':')) {
      const name = JSON.parse(token.slice(0, token.lastIndexOf('"') + 1)) as string;
      const names = open.at(-1);
      if (names?.has(name)) return true;
      names?.add(name);
    }
  }
  return false;
}
