/** Least-squares straight line. */

export interface Line {
  readonly slope: number;
  readonly intercept: number;
  /** Share of the variance that the line explains, R². */
  readonly r2: number;
}

export function fitLine(points: readonly (readonly [number, number])[]): Line {
  const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [meanX, meanY] = [mean(points.map(([x]) => x)), mean(points.map(([, y]) => y))];
  const sumOf = (f: (x: number, y: number) => number): number =>
    points.reduce((sum, [x, y]) => sum + f(x - meanX, y - meanY), 0);
  const slope = sumOf((x, y) => x * y) / sumOf((x) => x * x);
  const residual = sumOf((x, y) => (y - slope * x) ** 2);
  return { slope, intercept: meanY - slope * meanX, r2: 1 - residual / sumOf((_, y) => y * y) };
}
