/** Jobs of a server through the training API: what trains or copies, looked at, followed and cancelled from any process. Layer 5. */
import { z } from 'zod';
import { refuseUnknownKeys } from '../core/options.ts';
import { fromJob, fromTransferProgress, type Job } from '../wire/checkpoint-names.ts';
import { trainProgress } from '../wire/training.ts';
import { anyJob, jobList, transferProgress } from '../wire/transfers.ts';
import type { Api, CallOptions } from './call.ts';

export interface JobFilter extends CallOptions {
  /** Name of a model; default all. */
  readonly model?: string | undefined;
  readonly state?: Job['state'] | undefined;
}

export interface FollowOptions extends CallOptions {
  readonly onProgress?: ((progress: NonNullable<Job['progress']>) => void) | undefined;
}

/** Longest silence between two events of a job. */
const FOLLOW_SILENCE_MS = 600_000;

export async function callListJobs(api: Api, filter: JobFilter): Promise<Job[]> {
  refuseUnknownKeys('listJobs', filter, ['model', 'state', 'signal']);
  const { signal, ...wanted } = filter;
  const query = new URLSearchParams(Object.entries(wanted).filter((entry): entry is [string, string] => !!entry[1]));
  const path = query.size === 0 ? '/api/jobs' : `/api/jobs?${query}`;
  return (await api.sendIdempotent({ what: 'list of jobs', method: 'GET', path, signal }, jobList)).jobs.map(fromJob);
}

export async function callJob(api: Api, id: string, { signal }: CallOptions): Promise<Job> {
  return fromJob(await api.sendIdempotent({ what: `job ${id}`, method: 'GET', path: jobPath(id), signal }, anyJob));
}

/** Resolves with the job as it ended, however that went. */
export async function callFollowJob(api: Api, id: string, options: FollowOptions): Promise<Job> {
  refuseUnknownKeys('followJob', options, ['onProgress', 'signal']);
  const { signal, onProgress } = options;
  const path = `${jobPath(id)}/events`;
  return api.sendForEvents(
    { what: `job ${id}`, method: 'GET', path, timeoutMs: FOLLOW_SILENCE_MS, signal },
    (event) => {
      if (event.name === 'progress') {
        const progress = event.as(z.union([trainProgress, transferProgress]));
        onProgress?.('total_bytes' in progress ? fromTransferProgress(progress) : progress);
      }
      if (event.name !== 'job') return undefined;
      const told = event.as(anyJob);
      return told.state === 'queued' || told.state === 'running' ? undefined : fromJob(told);
    },
  );
}

/** Asks the server to stop the job, which ends soon; throws ApiError 409 if it has ended. */
export async function callCancelJob(api: Api, id: string, { signal }: CallOptions): Promise<Job> {
  const path = `${jobPath(id)}/cancel`;
  return fromJob(await api.send({ what: `cancelling of job ${id}`, method: 'POST', path, signal }, anyJob));
}

function jobPath(id: string): string {
  return `/api/jobs/${encodeURIComponent(id)}`;
}
