/**
 * A checkpoint's place in S3-compatible storage: `s3://bucket/[prefix/]<project>/models/<name>/checkpoints/<step>/`. Layer 5.
 * Every upload carries its SHA-256, which the storage checks; files larger than one part are sent in parts, each with its own.
 */
import { createHash } from 'node:crypto';
import { openAsBlob } from 'node:fs';
import { ConfigError, DataError } from '../../core/errors.ts';
import { folderName } from './checkpoints.ts';
import { type RemoteFile, type RemoteStore, remoteManifestName, type UploadOptions } from './remote-store.ts';
import { connectionFailed, type S3Client } from './s3-client.ts';

export interface S3Place {
  readonly bucket: string;
  /** Without slashes at its ends; empty for the root. */
  readonly prefix: string;
}

/** Most parts of one object. */
const maxParts = 10_000;
const largestManifestBytes = 16 * 2 ** 20;

/** Reads `s3://bucket[/prefix]`. Throws ConfigError for a bucket or prefix that cannot be. */
export function parseS3Place(text: string): S3Place {
  const [, bucket = '', prefix = ''] = /^s3:\/\/([^/]*)(?:\/(.*?))?\/?$/.exec(text) ?? [];
  const isBucket = /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(bucket) && !bucket.includes('..') && !isAddress(bucket);
  const parts = prefix === '' ? [] : prefix.split('/');
  const isPrefix = parts.every((part) => /^[\w.-]{1,200}$/.test(part) && part !== '.' && part !== '..');
  if (isBucket && isPrefix) return { bucket, prefix };
  const rule = 'must be s3://bucket or s3://bucket/prefix with letters, digits, dots, dashes, underscores and slashes';
  throw new ConfigError(`remote: ${rule}, got ${JSON.stringify(text.slice(0, 200))}`, { details: { param: 'remote' } });
}

function isAddress(bucket: string): boolean {
  return /^\d+(\.\d+){3}$/.test(bucket);
}

/** Of one model, without the step. */
function checkpointsKey({ prefix }: S3Place, project: string, model: string): string {
  return `${prefix === '' ? '' : `${prefix}/`}${project}/models/${model}/checkpoints`;
}

/** Steps of a model whose copies are finished, ascending. */
export async function listRemoteSteps(
  client: S3Client,
  place: S3Place,
  { project, model }: { readonly project: string; readonly model: string },
  signal: AbortSignal,
): Promise<number[]> {
  const prefix = `${checkpointsKey(place, project, model)}/`;
  const steps: number[] = [];
  let token: string | undefined;
  do {
    const query = { 'list-type': '2', prefix, ...(token !== undefined && { 'continuation-token': token }) };
    const response = await client.send({ method: 'GET', bucket: place.bucket, key: '', query }, signal);
    const text = await readSmall(response, `list of s3://${place.bucket}/${prefix}`);
    for (const [, key = ''] of text.matchAll(/<Key>([^<]*)<\/Key>/g)) {
      const [, step] = /^(\d{4,15})\/manifest\.json$/.exec(key.slice(prefix.length)) ?? [];
      if (key.startsWith(prefix) && step !== undefined) steps.push(Number(step));
    }
    token = unescapeXml(/<NextContinuationToken>([^<]*)<\/NextContinuationToken>/.exec(text)?.[1]);
  } while (token !== undefined);
  return steps.sort((a, b) => a - b);
}

/** The place of one step. */
export function createObjectStore(
  client: S3Client,
  where: S3Place,
  of: { readonly project: string; readonly model: string; readonly step: number },
): RemoteStore {
  const { bucket } = where;
  const folder = `${checkpointsKey(where, of.project, of.model)}/${folderName(of.step)}`;
  const place = `s3://${bucket}/${folder}`;
  const keyOf = (name: string): string => `${folder}/${name}`;
  return {
    place,
    isVersioned: false,
    limits: client.options,
    has: async ({ name, bytes, sha256 }, signal) => {
      try {
        const { headers } = await client.send({ method: 'HEAD', bucket, key: keyOf(name) }, signal);
        return Number(headers.get('content-length')) === bytes && headers.get('x-amz-meta-sha256') === sha256;
      } catch (error) {
        // Without the right to list, what is missing is forbidden; what is really forbidden, the upload will tell.
        if (error instanceof ConfigError && [403, 404].includes(Number(error.details.status))) return false;
        throw error;
      }
    },
    upload: async (files, manifest, options) => {
      for (const file of files) await uploadFile(client, bucket, keyOf(file.name), file, options);
      const body = `${JSON.stringify(manifest, null, 2)}\n`;
      const headers = { 'content-type': 'application/json', ...checksumHeader(sha256Of(body)) };
      const key = keyOf(remoteManifestName);
      await drain(await client.send({ method: 'PUT', bucket, key, body, headers }, options.signal));
      return place;
    },
    readManifest: async (signal) => {
      try {
        const response = await client.send({ method: 'GET', bucket, key: keyOf(remoteManifestName) }, signal);
        return JSON.parse(await readSmall(response, `${place}/${remoteManifestName}`)) as unknown;
      } catch (error) {
        if (error instanceof ConfigError && error.details.code === 's3_not_found') return null;
        if (!(error instanceof SyntaxError)) throw error;
        throw new DataError(`${place}/${remoteManifestName}: must be JSON, got something else`, { cause: error });
      }
    },
    open: (name, offset, signal) => {
      const headers: Record<string, string> = offset > 0 ? { range: `bytes=${offset}-` } : {};
      return client.send({ method: 'GET', bucket, key: keyOf(name), headers, isStreamed: true }, signal);
    },
  };
}

async function uploadFile(
  client: S3Client,
  bucket: string,
  key: string,
  { path, bytes, sha256 }: RemoteFile & { readonly path: string },
  { onBytes, signal }: UploadOptions,
): Promise<void> {
  const file = await openAsBlob(path);
  const partBytes = Math.max(client.options.partBytes, Math.ceil(bytes / maxParts));
  const meta = { 'x-amz-meta-sha256': sha256, 'content-type': 'application/octet-stream' };
  if (bytes <= partBytes) {
    const headers = { ...meta, ...checksumHeader(sha256) };
    await drain(await client.send({ method: 'PUT', bucket, key, body: file, sha256, headers }, signal));
    onBytes(bytes);
    return;
  }
  const start = { ...meta, 'x-amz-checksum-algorithm': 'SHA256' };
  const started = await client.send({ method: 'POST', bucket, key, query: { uploads: '' }, headers: start }, signal);
  const text = await readSmall(started, `upload of s3://${bucket}/${key}`);
  const uploadId = unescapeXml(/<UploadId>([^<]*)<\/UploadId>/.exec(text)?.[1]);
  if (uploadId === undefined) throw new DataError(`s3://${bucket}/${key}: the endpoint must name the upload, got none`);
  try {
    const parts: string[] = [];
    for (let from = 0; from < bytes; from += partBytes) {
      const body = file.slice(from, Math.min(bytes, from + partBytes));
      const partNumber = parts.length + 1;
      const sha = await sha256OfBlob(body);
      const query = { partNumber: String(partNumber), uploadId };
      const sent = await client.send(
        { method: 'PUT', bucket, key, query, body, sha256: sha, headers: checksumHeader(sha) },
        signal,
      );
      await drain(sent);
      parts.push(
        `<Part><PartNumber>${partNumber}</PartNumber><ETag>${escapeXml(sent.headers.get('etag') ?? '')}</ETag>` +
          `<ChecksumSHA256>${toBase64(sha)}</ChecksumSHA256></Part>`,
      );
      onBytes(body.size);
    }
    const body = `<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">${parts.join('')}</CompleteMultipartUpload>`;
    const done = await client.send({ method: 'POST', bucket, key, query: { uploadId }, body }, signal);
    // S3 may answer 200 and tell in the body that it failed.
    const answer = await readSmall(done, `upload of s3://${bucket}/${key}`);
    if (answer.includes('<Error>'))
      throw connectionFailed(`upload of s3://${bucket}/${key}`, new Error('it was not completed'));
  } catch (error) {
    // Parts that are never completed are stored and paid for.
    const giveUp = client.send({ method: 'DELETE', bucket, key, query: { uploadId } }, AbortSignal.timeout(10_000));
    await giveUp.then(drain).catch(() => {});
    throw error;
  }
}

function checksumHeader(sha256: string): Record<string, string> {
  return { 'x-amz-checksum-sha256': toBase64(sha256) };
}

function toBase64(hex: string): string {
  return Buffer.from(hex, 'hex').toString('base64');
}

function sha256Of(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

async function sha256OfBlob(blob: Blob): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of blob.stream()) hash.update(chunk);
  return hash.digest('hex');
}

async function drain(response: Response): Promise<void> {
  await response.body?.cancel().catch(() => {});
}

async function readSmall(response: Response, what: string): Promise<string> {
  const length = Number(response.headers.get('content-length') ?? 0);
  if (length > largestManifestBytes)
    throw new DataError(`${what}: must have at most ${largestManifestBytes} bytes, got ${length}`);
  return response.text().catch((cause: unknown) => {
    throw connectionFailed(what, cause);
  });
}

function unescapeXml(text: string | undefined): string | undefined {
  const entities: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" };
  return text?.replace(/&(amp|lt|gt|quot|apos);/g, (_match, name: string) => entities[name] as string);
}

function escapeXml(text: string): string {
  return text.replace(/[&<>]/g, (character) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[character] as string);
}
