/** Ours beside a peer that was given the same work in the same run. */
import { summarize } from './measure.ts';
import { type PeerJob, runPeer } from './peer-run.ts';
import type { Report } from './report.ts';

export interface Measured {
  readonly name: string;
  readonly tokensPerSecond: () => number;
}

export interface Peer {
  readonly name: string;
  /** Its precisions: each one's job, or why it is not run. */
  readonly variants: readonly { readonly label: string; readonly job: PeerJob | { readonly reason: string } }[];
}

export interface PeerSpeed {
  readonly peer: string;
  readonly label: string;
  readonly tokensPerSecond: number;
}

export interface PeerResult {
  readonly peer: string;
  /** Fastest first; empty if none could be measured. */
  readonly speeds: readonly PeerSpeed[];
  readonly reason: string;
}

/** Runs all variants of a peer, one after the other. */
export async function measurePeer(report: Report, work: string, peer: Peer): Promise<PeerResult> {
  const speeds: PeerSpeed[] = [];
  const reasons: string[] = [];
  for (const { label, job } of peer.variants) {
    const outcome = 'reason' in job ? { isRun: false as const, ...job } : await runPeer(job);
    if (!outcome.isRun) {
      reasons.push(`${label}: ${outcome.reason}`);
      report.addDetail(`${work}, ${peer.name} ${label}`, { reason: outcome.reason });
      continue;
    }
    const { samples, tokens, versions, peakRssMb } = outcome;
    const tokensPerSecond = tokens / summarize(samples, 'seconds').median;
    speeds.push({ peer: peer.name, label, tokensPerSecond });
    report.addDetail(`${work}, ${peer.name} ${label}`, { tokensPerSecond, samples, versions, peakRssMb });
    console.log(`  ${peer.name} ${label}: ${Math.round(tokensPerSecond)} tokens/s`);
  }
  speeds.sort((a, b) => b.tokensPerSecond - a.tokensPerSecond);
  return { peer: peer.name, speeds, reason: [...new Set(reasons.map(withoutLabel))].join('; ') };
}

const withoutLabel = (reason: string): string => reason.slice(reason.indexOf(': ') + 2);

/** Rows of ours against each speed; the goal stands on the row of the fastest. */
export function addComparison(
  report: Report,
  ours: readonly Measured[],
  { peer, speeds, reason }: PeerResult,
  { goal, isBestOnly = false }: { readonly goal?: number; readonly isBestOnly?: boolean } = {},
): void {
  const aim = goal === undefined ? {} : { goal };
  for (const { name, tokensPerSecond } of ours) {
    const value = tokensPerSecond();
    const row = { name, value, unit: 'tokens/s' };
    if (speeds.length === 0) report.add({ ...row, peer, ratio: null, reason, ...aim });
    for (const [place, speed] of (isBestOnly ? speeds.slice(0, 1) : speeds).entries()) {
      const ratio = value / speed.tokensPerSecond;
      const peerTokensPerSecond = speed.tokensPerSecond;
      report.add(
        { ...row, peer: `${speed.peer}, ${speed.label}`, ratio, ...(place === 0 ? aim : {}) },
        { peerTokensPerSecond },
      );
    }
  }
}
