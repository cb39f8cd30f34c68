/** Axis arithmetic shared by the terminal plot and the SVG. */

export interface Point {
  readonly x: number;
  readonly y: number;
}

/** Smallest and largest finite value; [0, 1] when there is none, widened around a single value. */
export function extent(values: readonly number[]): readonly [number, number] {
  const finite = values.filter(Number.isFinite);
  if (finite.length === 0) return [0, 1];
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** About `count` round numbers that cover [low, high], the first at or below `low`, the last at or above `high`. */
export function niceTicks(low: number, high: number, count: number): number[] {
  const raw = (high - low) / Math.max(1, count - 1);
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((factor) => factor * magnitude >= raw * (1 - 1e-9)) ?? 10) * magnitude;
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Enough decimals to tell ticks apart, as in `0.25` or `40`. */
export function formatTick(value: number, ticks: readonly number[]): string {
  const step = Math.abs((ticks[1] ?? 1) - (ticks[0] ?? 0));
  const decimals = step >= 1 || step === 0 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  return Math.abs(value) < step / 1e6 ? (0).toFixed(decimals) : value.toFixed(decimals);
}
