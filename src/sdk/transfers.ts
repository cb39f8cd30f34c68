/** Copies of checkpoints to S3-compatible storage or the Hugging Face hub, and back, through the training API. Layer 5. */
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import {
  type CopyProgress,
  type CopyResult,
  fromTransferProgress,
  fromTransferResult,
} from '../wire/checkpoint-names.ts';
import { describeIssue } from '../wire/errors.ts';
import { type RegisteredModel, toRegisterRequest } from '../wire/training-names.ts';
import { pullRequest, pushRequest, transferProgress, transferResult } from '../wire/transfers.ts';
import { type Api, type CallOptions, modelPath } from './call.ts';

export interface PushOptions extends CallOptions {
  /** `s3://bucket[/prefix]`, or `hf://org/name[@branch]`. The server's environment has endpoint and credentials. */
  readonly to: string;
  /** Default: the newest. */
  readonly step?: number | undefined;
  readonly onProgress?: ((progress: CopyProgress) => void) | undefined;
}

export interface PullOptions extends CallOptions {
  /** `s3://bucket[/prefix]`, or `hf://org/name[@revision]`. */
  readonly from: string;
  /** Whose copy in S3; default: of the model's own project and name. */
  readonly fromProject?: string | undefined;
  readonly fromModel?: string | undefined;
  /** Default: the newest there. */
  readonly step?: number | undefined;
  readonly onProgress?: ((progress: CopyProgress) => void) | undefined;
}

/** Longest silence between two events of a copy. */
const COPY_SILENCE_MS = 1_800_000;

export async function callPush(api: Api, name: string, options: PushOptions): Promise<CopyResult> {
  refuseUnknownKeys('pushCheckpoint', options, ['to', 'step', 'onProgress', 'signal']);
  const { to, step, onProgress, signal } = options;
  const body = { to, ...(step !== undefined && { step }) };
  const checked = pushRequest.safeParse(body);
  if (!checked.success)
    throw new ConfigError(`pushCheckpoint: ${describeIssue(checked.error.issues[0], body).message}`);
  const call = { what: `push of model ${name} to ${to}`, path: `${modelPath(name)}/push`, body: checked.data };
  return followCopy(api, call, onProgress, signal);
}

export async function callPull(api: Api, model: RegisteredModel, options: PullOptions): Promise<CopyResult> {
  refuseUnknownKeys('pullCheckpoint', options, ['from', 'fromProject', 'fromModel', 'step', 'onProgress', 'signal']);
  const { from, fromProject, fromModel, step, onProgress, signal } = options;
  const body = {
    model: toRegisterRequest(model),
    from,
    ...(fromProject !== undefined && { from_project: fromProject }),
    ...(fromModel !== undefined && { from_model: fromModel }),
    ...(step !== undefined && { step }),
  };
  const checked = pullRequest.safeParse(body);
  if (!checked.success)
    throw new ConfigError(`pullCheckpoint: ${describeIssue(checked.error.issues[0], body).message}`);
  const path = `${modelPath(model.name)}/pull`;
  return followCopy(
    api,
    { what: `pull of model ${model.name} from ${from}`, path, body: checked.data },
    onProgress,
    signal,
  );
}

/** Sent once: the server goes on when the connection breaks, and the same call made again joins it or finds it done. */
function followCopy(
  api: Api,
  call: { readonly what: string; readonly path: string; readonly body: object },
  onProgress: PushOptions['onProgress'],
  signal: AbortSignal | undefined,
): Promise<CopyResult> {
  return api.sendForEvents({ ...call, method: 'POST', timeoutMs: COPY_SILENCE_MS, signal }, (event) => {
    if (event.name === 'progress') onProgress?.(fromTransferProgress(event.as(transferProgress)));
    return event.name === 'result' ? fromTransferResult(event.as(transferResult)) : undefined;
  });
}
