/**
 * Messages between the embedded engine's parent, its process and the trainer's thread. Layer 4.
 * Structured clones, so typed arrays cross as they are. Errors cross as plain data and become their class again.
 */
import {
  AbortedError,
  ArtError,
  CheckpointError,
  ConfigError,
  DataError,
  EngineError,
  messageOf,
  ShapeError,
  StorageError,
} from '../../core/errors.ts';
import type {
  EngineInfo,
  ForwardBackwardRequest,
  ForwardBackwardResult,
  LogprobsRequest,
  OptimStepRequest,
  OptimStepResult,
  SampleEvent,
  SampleRequest,
  ScoreRequest,
} from '../engine.ts';
import type { EmbeddedEngineOptions } from './options.ts';

/** Calls that have one answer: argument and result by name. */
export interface CallMap {
  readonly start: { readonly request: EmbeddedEngineOptions; readonly result: null };
  readonly forwardBackward: { readonly request: ForwardBackwardRequest; readonly result: ForwardBackwardResult };
  readonly optimStep: { readonly request: OptimStepRequest; readonly result: OptimStepResult };
  readonly publish: { readonly request: { readonly step: number }; readonly result: null };
  readonly save: { readonly request: { readonly directory: string }; readonly result: null };
  readonly load: { readonly request: { readonly directory: string }; readonly result: null };
  readonly logprobs: { readonly request: LogprobsRequest; readonly result: readonly number[] };
  readonly score: { readonly request: ScoreRequest; readonly result: readonly (readonly number[])[] };
  readonly info: { readonly request: null; readonly result: EngineInfo };
}
export type CallName = keyof CallMap;

export type Call = {
  readonly [K in CallName]: { readonly name: K; readonly request: CallMap[K]['request'] };
}[CallName];

export type ToEngine =
  | { readonly kind: 'call'; readonly id: number; readonly call: Call }
  | { readonly kind: 'sample'; readonly id: number; readonly request: Omit<SampleRequest, 'signal'> }
  | { readonly kind: 'abort'; readonly id: number };

export type Outcome =
  | { readonly ok: true; readonly value: unknown }
  | { readonly ok: false; readonly error: PlainError };

export type FromEngine =
  | { readonly kind: 'answer'; readonly id: number; readonly outcome: Outcome }
  /** A pass was made; `events` may be empty. */
  | { readonly kind: 'events'; readonly events: readonly (readonly [id: number, event: SampleEvent | PlainError])[] };

export interface PlainError {
  readonly type: 'error';
  readonly code: string;
  readonly message: string;
  readonly details: Readonly<Record<string, unknown>>;
}

const errorClasses = [
  AbortedError,
  CheckpointError,
  ConfigError,
  DataError,
  EngineError,
  ShapeError,
  StorageError,
] as const;

/** What is not one of our errors becomes an EngineError; causes and stacks stay in the engine's process. */
export function toPlainError(error: unknown): PlainError {
  if (error instanceof ArtError) {
    return { type: 'error', code: error.code, message: error.message, details: error.details };
  }
  return { type: 'error', code: 'engine_error', message: `engine: ${messageOf(error)}`, details: {} };
}

/** The error of the class that `code` names; EngineError for any other code. */
export function fromPlainError(plain: PlainError): ArtError {
  const options = { details: plain.details };
  for (const ErrorClass of errorClasses) {
    const error = new ErrorClass(plain.message, options);
    if (error.code === plain.code) return error;
  }
  return new EngineError(plain.message, options);
}
