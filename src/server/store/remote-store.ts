/**
 * Where checkpoints are copied to and from: a place elsewhere that holds files by name, and what each must be. Layer 5.
 * `object-store.ts` (S3) and `hub-store.ts` (Hugging Face) are the places; `remote-checkpoints.ts` copies.
 */
import { z } from 'zod';
import { checkpointManifest } from './checkpoint-manifest.ts';
import { modelFile } from './run-folder.ts';

export interface RemoteFile {
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
}

/** `manifest.json` of a copied checkpoint, written last: a copy without it is not finished, and is not seen. */
export const remoteManifest = z.strictObject({
  format_version: z.literal(1),
  /** The model that it is of, as it was registered. */
  model: modelFile,
  /** Its checkpoint.json, with size and SHA-256 of every file. */
  checkpoint: checkpointManifest,
});
export type RemoteManifest = z.infer<typeof remoteManifest>;

export const remoteManifestName = 'manifest.json';

export interface UploadOptions {
  readonly onBytes: (bytes: number) => void;
  readonly signal: AbortSignal;
}

/** Milliseconds. */
export interface TransferLimits {
  /** Longest pause within a download. */
  readonly silenceTimeoutMs: number;
  /** Tries that may fail one after another without a byte between them. */
  readonly maxRetries: number;
  /** Wait before the first of them, doubled each time. */
  readonly retryDelayMs: number;
}

/** One checkpoint's place. Each call throws ConfigError, ApiError or AbortedError that names the place. */
export interface RemoteStore {
  /** As in `s3://bucket/demo/models/agent/checkpoints/0003`. */
  readonly place: string;
  /** What was there before stays reachable when something else takes its place. */
  readonly isVersioned: boolean;
  readonly limits: TransferLimits;
  /** Whether a file is there with the same bytes. */
  readonly has: (file: RemoteFile, signal: AbortSignal) => Promise<boolean>;
  /** Puts these files there, then the manifest; returns where exactly it is now. */
  readonly upload: (
    files: readonly (RemoteFile & { readonly path: string })[],
    manifest: RemoteManifest,
    options: UploadOptions,
  ) => Promise<string>;
  /** Null if there is none. */
  readonly readManifest: (signal: AbortSignal) => Promise<unknown>;
  /** The bytes from `offset` on: 206, or all of them: 200. */
  readonly open: (name: string, offset: number, signal: AbortSignal) => Promise<Response>;
}
