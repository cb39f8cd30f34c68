/** JSON values that can be told apart and compared. Layer 0. */

/** JSON text with sorted names: equal for equal values, whatever order they were written in. `undefined` is left out, as JSON does. */
export function canonicalJson(value: unknown): string {
  return (
    JSON.stringify(value, (_name, item: unknown) => {
      if (!isJsonObject(item)) return item;
      return Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)));
    }) ?? 'null'
  );
}

/** Neither null nor an array. */
export function isJsonObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
