/** A job as the answer to the call that started it: events up to its result, or 202 and the job. Layer 5. */
import type { Context } from 'hono';
import { toHttpError } from '../../wire/errors.ts';
import { answerEvents } from '../http/event-stream.ts';

/** What training jobs and copies have in common. */
export interface AnswerableJob<Progress, Result> {
  readonly id: string;
  readonly result: Promise<Result>;
  readonly subscribe: (listener: (progress: Progress) => void) => () => void;
  readonly describe: () => object;
}

export function answerJob<Progress, Result>(
  c: Context,
  job: AnswerableJob<Progress, Result>,
  isWaiting: boolean,
): Response {
  const headers = { 'x-art-job-id': job.id };
  if (!isWaiting) {
    job.result.catch(() => {}); // told by the job
    return c.json(job.describe(), 202, headers);
  }
  return answerEvents(
    c,
    ({ send, end }) => {
      const unsubscribe = job.subscribe((progress) => send({ event: 'progress', data: progress }));
      job.result
        .then(
          (result) => send({ event: 'result', data: result }),
          (error: unknown) => {
            const { body, isInternal } = toHttpError(error);
            if (isInternal) console.error(error);
            send({ event: 'error', data: body });
          },
        )
        .finally(end);
      return unsubscribe;
    },
    { headers },
  );
}
