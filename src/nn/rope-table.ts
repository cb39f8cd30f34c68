/** Rotary position tables. Layer 2. Source: RoFormer (arXiv 2104.09864); frequencies as in Hugging Face Llama, no scaling. */

export interface RopeTable {
  /** [positions, headSize / 2] */
  readonly cos: Float32Array;
  readonly sin: Float32Array;
  readonly shape: readonly [number, number];
}

/** Angle of position p, pair i: p · theta^(−2i / headSize), in radians, computed in float64. */
export function createRopeTable(positions: number, headSize: number, theta: number): RopeTable {
  const half = headSize / 2;
  const cos = new Float32Array(positions * half);
  const sin = new Float32Array(positions * half);
  for (let position = 0; position < positions; position++) {
    for (let i = 0; i < half; i++) {
      const angle = position * theta ** (-i / half);
      cos[position * half + i] = Math.cos(angle);
      sin[position * half + i] = Math.sin(angle);
    }
  }
  return { cos, sin, shape: [positions, half] };
}
