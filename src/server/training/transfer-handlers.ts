/** Copies of checkpoints over HTTP: to S3-compatible storage or the hub, and back. Layer 5. Each is written to the audit log. */
import { join } from 'node:path';
import type { Context } from 'hono';
import { ConfigError, messageOf } from '../../core/errors.ts';
import { refuse } from '../../wire/errors.ts';
import type { RegisterRequest } from '../../wire/training.ts';
import type { transferRoutes } from '../../wire/transfer-routes.ts';
import type { TransferResult, WireTransferJob } from '../../wire/transfers.ts';
import { pathParam, type RouteHandlers } from '../http/routes.ts';
import { recordChange } from '../security/caller.ts';
import { createHubStore, parseHubPlace } from '../store/hub-store.ts';
import { createObjectStore, listRemoteSteps, parseS3Place } from '../store/object-store.ts';
import { noCopy, type PulledCheckpoint, pullCheckpoint, pushCheckpoint } from '../store/remote-checkpoints.ts';
import type { RemoteStore } from '../store/remote-store.ts';
import { readRegistration } from '../store/run-folder.ts';
import { createS3Client } from '../store/s3-client.ts';
import { answerJob } from './answer-job.ts';
import { findBaseModel, normalizeBaseModel } from './base-model.ts';
import { guardBaseModel } from './base-model-guard.ts';
import { targetOf } from './change-records.ts';
import type { ModelRegistry } from './model-registry.ts';
import { placePulled } from './place-pulled.ts';
import type { TransferJob } from './transfers.ts';

export function transferHandlers(registry: ModelRegistry): RouteHandlers<typeof transferRoutes> {
  return {
    pushCheckpoint: async (c, { body, query }) => {
      const run = registry.get(pathParam(c, 'name'));
      const step = body.step ?? run.model.step();
      const checkpoint = run.checkpoints.list().find(({ manifest }) => manifest.step === step);
      if (checkpoint === undefined) {
        const message = `checkpoint: must be one of ${run.model.name}, got step ${step}`;
        throw refuse(404, 'checkpoint_not_found', message, 'step');
      }
      const of = { project: run.model.project, model: run.model.name, step };
      checkPlace(registry, body.to);
      const identity = { kind: 'push', model: run.model.name, request: { to: body.to, step } } as const;
      const target = targetOf(run.model, step);
      const job = registry.transfers.start(identity, async (context) =>
        recorded(c, target, identity.kind, async () => {
          const store = await openStore(registry, body.to, of, context.signal);
          return pushCheckpoint(store, checkpoint, await readRegistration(run.directory), context);
        }),
      );
      return answerCopy(c, job, query.wait);
    },
    pullCheckpoint: async (c, { body, query }) => {
      const name = pathParam(c, 'name');
      if (body.model.name !== name) {
        throw refuse(
          400,
          'invalid_value',
          `model.name: must be the name in the path, ${name}, got ${body.model.name}`,
          'model.name',
        );
      }
      await guardBaseModel(c, body.model, registry);
      const request = { ...body.model, base_model: await normalizeBaseModel(body.model.base_model) };
      const { from, from_project: project = request.project, from_model: model = name } = body;
      checkPlace(registry, from);
      const identity = { kind: 'pull', model: name, request: body } as const;
      const target = targetOf(request);
      const job = registry.transfers.start(identity, (context) =>
        recorded(c, target, identity.kind, async () => {
          const step = body.step ?? (await newestStep(registry, from, { project, model }, context.signal));
          const store = await openStore(registry, from, { project, model, step }, context.signal);
          const pulled = await pullCheckpoint(store, join(registry.root, '.pulls'), context);
          checkStep(store.place, body.step, pulled.result.step);
          const base = await findBaseModel(request.base_model, commitOf(pulled, request), registry.hub);
          return { ...pulled.result, is_new: await placePulled(registry, request, base, pulled) };
        }),
      );
      return answerCopy(c, job, query.wait);
    },
  };
}

interface CopyOf {
  readonly project: string;
  readonly model: string;
  readonly step: number;
}

/** Throws ConfigError for a place that cannot be, ApiError 403 for one that is not among those that the server allows. */
function checkPlace({ remotes }: ModelRegistry, place: string): void {
  if (place.startsWith('hf://')) parseHubPlace(place);
  else parseS3Place(place);
  const isBelow = (prefix: string): boolean => place === prefix || place.startsWith(`${prefix.replace(/\/$/, '')}/`);
  if (remotes.allowed === undefined || remotes.allowed.some(isBelow)) return;
  throw refuse(403, 'remote_not_allowed', `remote: must be one that the server's owner allows, got ${place}`, 'remote');
}

async function openStore(
  { remotes, hub }: ModelRegistry,
  place: string,
  of: CopyOf,
  signal: AbortSignal,
): Promise<RemoteStore> {
  const title = targetOf({ project: of.project, name: of.model }, of.step);
  if (place.startsWith('hf://')) return createHubStore(parseHubPlace(place), title, hub, signal);
  return createObjectStore(createS3Client(remotes.s3), parseS3Place(place), of);
}

/** Of a repository of the hub it is what its revision holds: told by its manifest. */
async function newestStep(
  { remotes }: ModelRegistry,
  place: string,
  of: Omit<CopyOf, 'step'>,
  signal: AbortSignal,
): Promise<number> {
  if (place.startsWith('hf://')) return 0;
  const steps = await listRemoteSteps(createS3Client(remotes.s3), parseS3Place(place), of, signal);
  const newest = steps.at(-1);
  if (newest === undefined) throw noCopy(`${place} of ${of.project}/${of.model}`);
  return newest;
}

/** A branch of the hub may have moved on since; the checkpoint is of the commit that it stood for then. */
function commitOf({ manifest: { model } }: PulledCheckpoint, request: RegisterRequest): string | null {
  return model.base_model === request.base_model ? (model.base_model_commit ?? null) : null;
}

function checkStep(place: string, wanted: number | undefined, got: number): void {
  if (wanted === undefined || wanted === got) return;
  throw new ConfigError(
    `${place}: must hold step ${wanted}, got step ${got}; name the commit of that step, as in hf://org/name@commit`,
    {
      details: { code: 'remote_not_found', param: 'step' },
    },
  );
}

/** What leaves, and what comes, is in the audit log, whether it went well or not. */
async function recorded(
  c: Context,
  target: string,
  kind: WireTransferJob['kind'],
  work: () => Promise<TransferResult>,
): Promise<TransferResult> {
  const record = async (after: object): Promise<void> => {
    await recordChange(c, { what: `checkpoint.${kind}`, target, after }).catch((error: unknown) => {
      console.warn(`audit log: checkpoint.${kind} of ${target} is not in it: ${messageOf(error)}`);
    });
  };
  try {
    const result = await work();
    await record({ place: result.place, adapter_sha256: result.adapter_sha256, copied_bytes: result.copied_bytes });
    return result;
  } catch (error) {
    await record({ error: messageOf(error).slice(0, 500) });
    throw error;
  }
}

function answerCopy(c: Context, job: TransferJob, isWaiting = true): Response {
  return answerJob(c, job, isWaiting);
}
