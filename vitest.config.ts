/** Tests of the whole repository; they need the build, which the embedded engine's process runs from. */
import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'examples/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Tests of the engine start processes of their own, which would fight for the cores.
    maxWorkers: 2,
  },
});
