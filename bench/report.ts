/** What a run of the benchmarks has measured: rows for tools and for the console, raw samples for the results file. */
import { loadavg } from 'node:os';
import type { Ceiling } from './ceiling.ts';
import type { Sample } from './measure.ts';

export interface Result {
  readonly name: string;
  /** Of the median; null if it could not be measured. */
  readonly value: number | null;
  readonly unit: string;
  readonly ceilingShare?: number;
  /** What was measured beside it, and how many times as good this is: ours ÷ peer, higher is better; null if the peer was not measured. */
  readonly peer?: string;
  readonly ratio?: number | null;
  /** Why a ratio is null. */
  readonly reason?: string;
  /** Smallest ratio that the project aims at, and whether it was reached. A missed goal fails nothing. */
  readonly goal?: number;
  readonly isMet?: boolean | null;
}

/** What a results file has beside the JSON line. */
export interface Measurement {
  /** From the fastest iteration. */
  readonly best?: number;
  readonly gflops?: number;
  readonly ceiling?: Ceiling;
  /** Share of the ceiling when both are taken per second of CPU time. */
  readonly cpuCeilingShare?: number;
  readonly threads?: number;
  readonly samples?: readonly Sample[];
  readonly [more: string]: unknown;
}

export type Detail = Measurement & { readonly name: string; readonly loadAverage: number };

export const round = (value: number): number => Number(value.toPrecision(4));

export class Report {
  readonly results: Result[] = [];
  readonly details: Detail[] = [];

  /** A row with `goal` is completed with `isMet`. */
  add(result: Result, detail: Measurement = {}): void {
    const { goal, ratio } = result;
    const isMet = goal === undefined ? {} : { isMet: ratio === null || ratio === undefined ? null : ratio >= goal };
    const row = roundResult({ ...result, ...isMet });
    this.results.push(row);
    this.addDetail(row.name, detail);
    console.log(describe(row, detail));
  }

  /** What was measured on the way to a row. */
  addDetail(name: string, detail: Measurement): void {
    this.details.push({ name, loadAverage: round(loadavg()[0]!), ...detail });
  }
}

const percent = (share: number): string => `${(share * 100).toFixed(0)} %`;
const format = (value: number): string =>
  value >= 100 ? Math.round(value).toLocaleString('en-US') : String(Number(value.toPrecision(3)));

function describe(result: Result, { best, gflops, ceiling, cpuCeilingShare }: Measurement): string {
  const { name, value, unit, ceilingShare, peer, ratio, goal, isMet, reason } = result;
  const aim =
    goal === undefined ? '' : ` (goal ${goal}: ${isMet === null ? 'not measured' : isMet ? 'met' : 'missed'})`;
  const columns = [
    name.padEnd(56),
    value === null ? '' : `${format(value).padStart(9)} ${unit}`,
    best === undefined ? '' : `best ${format(best)}`.padEnd(14),
    gflops === undefined ? '' : `${gflops.toFixed(1)} of ${ceiling?.gflops.toFixed(1)} GFLOP/s`,
    ceilingShare === undefined ? '' : `${percent(ceilingShare)} (by CPU time ${percent(cpuCeilingShare!)})`,
    peer === undefined ? '' : ratio === null ? `${peer}: not measured, ${reason}` : `${ratio} × ${peer}`,
    `load ${loadavg()[0]!.toFixed(1)}`,
  ];
  return columns.filter((column) => column !== '').join('  ') + aim;
}

function roundResult(result: Result): Result {
  const { value, ceilingShare, ratio } = result;
  return {
    ...result,
    value: value === null ? null : round(value),
    ...(ceilingShare === undefined ? {} : { ceilingShare: round(ceilingShare) }),
    ...(ratio === undefined || ratio === null ? {} : { ratio: round(ratio) }),
  };
}
