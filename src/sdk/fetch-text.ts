/** One bounded exchange over HTTP whose answer is read whole, with servers of any kind; `call.ts` speaks to ours. Layer 5. */
import { AbortedError, ApiError, fetchFailure } from '../core/errors.ts';
import { type DeadlineOptions, withDeadline } from './deadline.ts';

export interface TextRequest extends DeadlineOptions {
  readonly url: string;
  readonly method?: 'GET' | 'POST';
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

/** The answer's text. Throws ApiError with the status, 0 where no whole answer came; AbortedError at the limit or by the signal. */
export async function fetchText({ url, timeoutMs, signal, what, ...request }: TextRequest): Promise<string> {
  return withDeadline({ what, timeoutMs, signal }, async (stop) => {
    let response: Response;
    let text: string;
    try {
      response = await fetch(url, { ...request, signal: stop });
      text = await response.text();
    } catch (cause) {
      throw connectionError(`${what}: could not be sent or was cut`, cause);
    }
    if (response.ok) return text;
    throw new ApiError(`${what}: HTTP ${response.status}: ${text.slice(0, 500) || 'empty answer'}`, response.status);
  });
}

/** The error for an exchange that broke on its way (status 0); an AbortedError as it is. */
export function connectionError(message: string, cause?: unknown): ApiError | AbortedError {
  if (cause instanceof AbortedError) return cause;
  const reason = cause instanceof Error ? ` (${fetchFailure(cause)})` : '';
  return new ApiError(message + reason, 0, { cause, details: { isConnectionError: true } });
}
