/**
 * Every error this package throws, and the message of any thrown value. Layer 0.
 * Programmer errors throw; failures of rollouts and judges are recorded in their group. HTTP status codes live in `wire/`.
 */

interface ErrorOptions {
  readonly cause?: unknown;
  /** Plain data that a program can act on; never secrets. */
  readonly details?: Readonly<Record<string, unknown>>;
}

/** Base of all errors here. `code` is stable and may be matched on; `message` says what, the rule, and the value got. */
export class ArtError extends Error {
  readonly code: string = 'art_error';
  readonly details: Readonly<Record<string, unknown>>;

  constructor(message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.details = options.details ?? {};
  }
}

/** An option or configuration is unknown or out of range. */
export class ConfigError extends ArtError {
  override readonly code = 'config_error';
}

/** Input data (a file, a trajectory, a request) breaks a rule. */
export class DataError extends ArtError {
  override readonly code = 'data_error';
}

/** Shapes or dtypes of tensors do not fit together. */
export class ShapeError extends ArtError {
  override readonly code = 'shape_error';
}

/** A checkpoint is missing, damaged or of another model. */
export class CheckpointError extends ArtError {
  override readonly code = 'checkpoint_error';
}

/** A file could not be written: the disk is full, or the folder may not be written. `details` has path and free bytes. */
export class StorageError extends ArtError {
  override readonly code = 'storage_error';
}

/** The engine failed or died. `details.isRetryable` tells whether the same request may succeed later. */
export class EngineError extends ArtError {
  override readonly code = 'engine_error';
}

/** An HTTP exchange failed: `status`, and the error body of the server where it sent one. */
export class ApiError extends ArtError {
  override readonly code = 'api_error';
  readonly status: number;

  constructor(message: string, status: number, options: ErrorOptions = {}) {
    super(message, options);
    this.status = status;
  }
}

/** More rollouts failed than the caller allows. `cause` is the first failure; `details` has the counts. */
export class RolloutError extends ArtError {
  override readonly code = 'rollout_error';
}

/** A judge gave no usable scores within its bounds. `details` has the counts of what went wrong; only the group that it judged fails. */
export class JudgeError extends ArtError {
  override readonly code = 'judge_error';
}

/** The caller gave up: an AbortSignal fired or a time limit passed. The message names what was waited for. */
export class AbortedError extends ArtError {
  override readonly code = 'aborted';
}

/** Training gets no signal any more: too many groups in a row had equal rewards throughout. The message says what to look at. */
export class CollapseError extends ArtError {
  override readonly code = 'collapse';
}

/** Nothing moved for longer than allowed. The message and `details.stages` name every stage, what it waits for, and since when. */
export class StallError extends ArtError {
  override readonly code = 'stalled';
}

/** The message of whatever was thrown, which need not be an Error. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Why a `fetch` failed: its own message is no more than `fetch failed`, the reason is the message of its cause. */
export function fetchFailure(error: unknown): string {
  return messageOf(error instanceof Error && error.cause instanceof Error ? error.cause : error);
}

/** Whether whoever made the error says that a later try may go better: `details.isTransient`. */
export function isTransient(error: unknown): boolean {
  return error instanceof ApiError && error.details.isTransient === true;
}
