/**
 * S3-compatible storage on loopback for tests: objects in memory, path-style. It recomputes every signature (Signature Version 4) and
 * every checksum from the request itself, and refuses what does not fit; faults are staged by the tests.
 * Source: Amazon S3 API Reference. Only what copies of checkpoints need.
 */
import { createHash, createHmac } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export const accessKeyId = 'AKIDOFTHETEST';
export const secretAccessKey = 'secret/of+the=test';
export const region = 'eu-test-1';

export interface S3Object {
  body: Buffer;
  readonly headers: Readonly<Record<string, string>>;
}

/** Failures of requests whose method and path match; each is used up as often as it says. */
export interface S3Fault {
  readonly method: string;
  readonly path: RegExp;
  /** A status with S3's code; or the connection is cut, stalls, or carries a flipped bit. */
  readonly what:
    | { readonly status: number; readonly code: string }
    | { readonly cutAfter: number }
    | { readonly stallAfter: number }
    | { readonly flip: true };
  times: number;
}

export interface S3Request {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly range: string | null;
  readonly bytes: number;
}

export interface S3Server {
  readonly endpoint: string;
  readonly objects: Map<string, S3Object>;
  readonly requests: S3Request[];
  /** Uploads in parts that were begun and neither completed nor given up. */
  readonly openUploads: () => number;
  faults: S3Fault[];
  readonly close: () => Promise<void>;
}

interface State {
  readonly objects: Map<string, S3Object>;
  readonly uploads: Map<string, { key: string; headers: Record<string, string>; parts: Map<number, Buffer> }>;
  faults: S3Fault[];
}

export async function startS3(): Promise<S3Server> {
  const state: State = { objects: new Map(), uploads: new Map(), faults: [] };
  const requests: S3Request[] = [];
  const server = createServer(async (request, response) => {
    const body = await readBody(request).catch(() => null);
    if (body === null) return response.destroy();
    const url = new URL(request.url ?? '', 'http://localhost');
    const path = decodeURIComponent(url.pathname);
    requests.push({
      ...{ method: request.method ?? '', path, query: url.search },
      ...{ range: request.headers.range ?? null, bytes: body.length },
    });
    const fault = state.faults.find(
      (candidate) =>
        candidate.times > 0 && candidate.method === request.method && candidate.path.test(path + url.search),
    );
    if (fault !== undefined) fault.times -= 1;
    if (fault !== undefined && 'status' in fault.what) return sendError(response, fault.what.status, fault.what.code);
    if (fault !== undefined && 'flip' in fault.what && request.method === 'PUT') body[0] = (body[0] ?? 0) ^ 1;
    const refused = checkRequest(request, url, body);
    if (refused !== null) return sendError(response, refused.status, refused.code);
    return answer(state, request, response, url, body, fault);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    objects: state.objects,
    requests,
    openUploads: () => state.uploads.size,
    get faults() {
      return state.faults;
    },
    set faults(value) {
      state.faults = value;
    },
    close: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

function answer(
  state: State,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
  body: Buffer,
  fault: S3Fault | undefined,
): unknown {
  const key = decodeURIComponent(url.pathname).slice(1);
  const uploadId = url.searchParams.get('uploadId');
  const headers = storedHeaders(request);
  switch (request.method) {
    case 'GET':
      if (url.searchParams.get('list-type') === '2') return sendList(state, response, key.replace(/\/$/, ''), url);
      return sendObject(state, request, response, key, fault);
    case 'HEAD':
      return sendObject(state, request, response, key, fault);
    case 'PUT': {
      if (uploadId === null) {
        state.objects.set(key, { body, headers });
        return response.writeHead(200, { etag: etagOf(body) }).end();
      }
      const upload = state.uploads.get(uploadId);
      if (upload === undefined) return sendError(response, 404, 'NoSuchUpload');
      upload.parts.set(Number(url.searchParams.get('partNumber')), body);
      return response.writeHead(200, { etag: etagOf(body) }).end();
    }
    case 'POST':
      if (uploadId !== null) return completeUpload(state, response, uploadId, body.toString());
      state.uploads.set(`upload&${state.uploads.size}`, { key, headers, parts: new Map() });
      return sendXml(response, `<UploadId>upload&amp;${state.uploads.size - 1}</UploadId>`);
    default:
      state.uploads.delete(uploadId ?? '');
      return response.writeHead(204).end();
  }
}

function completeUpload(state: State, response: ServerResponse, uploadId: string, xml: string): unknown {
  const upload = state.uploads.get(uploadId);
  if (upload === undefined) return sendError(response, 404, 'NoSuchUpload');
  const bodies: Buffer[] = [];
  for (const [, number, etag, checksum] of xml.matchAll(
    /<Part><PartNumber>(\d+)<\/PartNumber><ETag>([^<]*)<\/ETag><ChecksumSHA256>([^<]*)<\/ChecksumSHA256><\/Part>/g,
  )) {
    const part = upload.parts.get(Number(number));
    const isSame = part !== undefined && etagOf(part) === etag && sha256(part).toString('base64') === checksum;
    if (!isSame) return sendError(response, 400, 'InvalidPart');
    bodies.push(part);
  }
  if (bodies.length !== upload.parts.size) return sendError(response, 400, 'InvalidPart');
  state.objects.set(upload.key, { body: Buffer.concat(bodies), headers: upload.headers });
  state.uploads.delete(uploadId);
  return sendXml(response, '<CompleteMultipartUploadResult/>');
}

function sendList(state: State, response: ServerResponse, bucket: string, url: URL): unknown {
  const prefix = `${bucket}/${url.searchParams.get('prefix') ?? ''}`;
  const start = Number(url.searchParams.get('continuation-token')?.slice('token&'.length) ?? 0);
  const keys = [...state.objects.keys()].filter((key) => key.startsWith(prefix)).sort();
  const page = keys.slice(start, start + 2); // pages are small, so that they are followed
  const next = start + 2 < keys.length ? `<NextContinuationToken>token&amp;${start + 2}</NextContinuationToken>` : '';
  return sendXml(response, page.map((key) => `<Key>${key.slice(bucket.length + 1)}</Key>`).join('') + next);
}

function sendObject(
  state: State,
  request: IncomingMessage,
  response: ServerResponse,
  key: string,
  fault: S3Fault | undefined,
): unknown {
  const object = state.objects.get(key);
  if (object === undefined) return sendError(response, 404, 'NoSuchKey');
  const from = Number(/^bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1] ?? 0);
  const body = Buffer.from(object.body.subarray(from));
  const range = { 'content-range': `bytes ${from}-${object.body.length - 1}/${object.body.length}` };
  response.writeHead(from > 0 ? 206 : 200, {
    ...object.headers,
    'content-length': body.length,
    ...(from > 0 && range),
  });
  if (request.method === 'HEAD') return response.end();
  const what: { cutAfter?: number; stallAfter?: number; flip?: true; status?: number; code?: string } =
    fault?.what ?? {};
  if (what.flip) body[body.length - 1] = (body.at(-1) ?? 0) ^ 1;
  if (what.cutAfter !== undefined) return response.write(body.subarray(0, what.cutAfter), () => response.destroy());
  if (what.stallAfter !== undefined) return response.write(body.subarray(0, what.stallAfter));
  return response.end(body);
}

/** Null if signature and checksums are those of the request. */
function checkRequest(request: IncomingMessage, url: URL, body: Buffer): { status: number; code: string } | null {
  const authorization = request.headers.authorization ?? '';
  const [, credential = '', signed = '', signature = ''] =
    /^AWS4-HMAC-SHA256 Credential=([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$/.exec(authorization) ?? [];
  const [id, date = '', where, service, end] = credential.split('/');
  if (id !== accessKeyId) return { status: 403, code: 'InvalidAccessKeyId' };
  const time = String(request.headers['x-amz-date']);
  const isScope = where === region && service === 's3' && end === 'aws4_request' && time.startsWith(date);
  const payload = String(request.headers['x-amz-content-sha256']);
  const names = signed.split(';');
  const mustBeSigned = Object.keys(request.headers).filter((name) => name.startsWith('x-amz-') || name === 'host');
  if (!isScope || mustBeSigned.some((name) => !names.includes(name))) return { status: 403, code: 'AccessDenied' };
  const encode = (text: string): string =>
    encodeURIComponent(text).replace(
      /[!'()*]/g,
      (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
    );
  const canonical = [
    request.method,
    decodeURIComponent(url.pathname).split('/').map(encode).join('/'),
    [...url.searchParams]
      .map((pair) => pair.map(encode).join('='))
      .sort()
      .join('&'),
    ...names.map((name) => `${name}:${String(request.headers[name] ?? '').trim()}`),
    '',
    signed,
    payload,
  ].join('\n');
  const toSign = ['AWS4-HMAC-SHA256', time, `${date}/${where}/s3/aws4_request`, sha256(canonical).toString('hex')].join(
    '\n',
  );
  const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest();
  const key = [date, region, 's3', 'aws4_request'].reduce<string | Buffer>(hmac, `AWS4${secretAccessKey}`);
  if (hmac(key, toSign).toString('hex') !== signature) return { status: 403, code: 'SignatureDoesNotMatch' };
  if (payload !== sha256(body).toString('hex')) return { status: 400, code: 'XAmzContentSHA256Mismatch' };
  const checksum = request.headers['x-amz-checksum-sha256'];
  if (checksum !== undefined && checksum !== sha256(body).toString('base64')) return { status: 400, code: 'BadDigest' };
  if (request.method === 'PUT' && checksum === undefined) return { status: 400, code: 'MissingChecksum' };
  return null;
}

function storedHeaders(request: IncomingMessage): Record<string, string> {
  const kept = Object.entries(request.headers).filter(
    ([name]) => name.startsWith('x-amz-meta-') || name === 'content-type',
  );
  return Object.fromEntries(kept.map(([name, value]) => [name, String(value)]));
}

function sha256(data: string | Buffer): Buffer {
  return createHash('sha256').update(data).digest();
}

function etagOf(body: Buffer): string {
  return `"${createHash('md5').update(body).digest('hex')}"`;
}

function sendXml(response: ServerResponse, inner: string): unknown {
  return response
    .writeHead(200, { 'content-type': 'application/xml' })
    .end(`<?xml version="1.0"?><Result>${inner}</Result>`);
}

function sendError(response: ServerResponse, status: number, code: string): unknown {
  return response
    .writeHead(status)
    .end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>of the test</Message></Error>`);
}

async function readBody(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}
