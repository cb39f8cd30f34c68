/** What a run answers to calls that it cannot take. Layer 5. */
import { type ApiError, EngineError } from '../core/errors.ts';
import { refuse } from '../wire/errors.ts';

export function reusedKey(key: string): ApiError {
  return refuse(
    409,
    'idempotency_key_reused',
    `idempotency_key: must be new for a request with another body, got ${JSON.stringify(key)} again`,
    'idempotency_key',
  );
}

export function closingError(): EngineError {
  return new EngineError('train: the server is shutting down; send the call again with the same idempotency key', {
    details: { isRetryable: true },
  });
}
