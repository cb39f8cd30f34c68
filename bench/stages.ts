/** What every stage of the benchmarks gets. */
import type { Options } from './options.ts';
import type { Report } from './report.ts';

export interface StageContext {
  readonly report: Report;
  readonly options: Options;
  /** False: rows against peers are left out. */
  readonly hasPeers: boolean;
}
