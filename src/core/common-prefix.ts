/** How far two token sequences begin alike. Layer 0. */

/** Number of leading tokens that both have. */
export function commonPrefix(a: readonly number[], b: readonly number[]): number {
  const length = Math.min(a.length, b.length);
  let common = 0;
  while (common < length && a[common] === b[common]) common++;
  return common;
}
