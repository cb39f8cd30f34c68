/** The hub's side of a commit, for `hub-server.ts`: repositories, git-LFS objects that are checked by their SHA-256, commits. */
import { createHash } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { HubRepo } from './hub-server.ts';

export interface Writes {
  readonly repos: Map<string, HubRepo>;
  /** Large contents by SHA-256, whether a commit names them or not. */
  readonly objects: Map<string, Buffer>;
  /** Uploads of large files that fail with 500. */
  failingUploads: number;
}

/** Answers a POST or PUT of a client that may write; false if it is none that is known. */
export async function handleWrite(
  request: IncomingMessage,
  response: ServerResponse,
  writes: Writes,
  ownUrl: string,
): Promise<boolean> {
  const path = new URL(request.url ?? '', ownUrl).pathname;
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const body = Buffer.concat(chunks);
  const send = (status: number, value: object): boolean => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    return true;
  };
  const upload = /^\/upload\/([0-9a-f]{64})$/.exec(path)?.[1];
  if (upload !== undefined) {
    if (writes.failingUploads > 0) {
      writes.failingUploads -= 1;
      return send(500, { error: 'a fault of the test' });
    }
    if (createHash('sha256').update(body).digest('hex') !== upload) return send(400, { error: 'wrong bytes' });
    writes.objects.set(upload, body);
    return send(200, {});
  }
  const json = body.toString();
  if (path === '/api/repos/create') {
    const { name, organization } = JSON.parse(json) as { name: string; organization: string };
    const repo = `${organization}/${name}`;
    if (writes.repos.has(repo)) return send(409, { error: 'exists' });
    writes.repos.set(repo, { files: {}, isPrivate: true });
    return send(200, { url: `${ownUrl}/${repo}` });
  }
  const [, name = '', what] =
    /^(?:\/api\/models)?\/([^/]+\/[^/]+?)(?:\.git\/info\/lfs\/objects)?\/(preupload\/main|batch|commit\/main)$/.exec(
      path,
    ) ?? [];
  const repo = writes.repos.get(name);
  if (repo === undefined) return false;
  if (what === 'preupload/main') {
    const { files } = JSON.parse(json) as { files: { path: string }[] };
    const modeOf = (file: string): string => (file.endsWith('.safetensors') ? 'lfs' : 'regular');
    return send(200, {
      files: files.map((file) => ({ path: file.path, uploadMode: modeOf(file.path), shouldIgnore: false })),
    });
  }
  if (what === 'batch') {
    const { objects } = JSON.parse(json) as { objects: { oid: string; size: number }[] };
    const actions = (oid: string): object =>
      writes.objects.has(oid) ? {} : { actions: { upload: { href: `${ownUrl}/upload/${oid}` } } };
    return send(200, { transfer: 'basic', objects: objects.map(({ oid, size }) => ({ oid, size, ...actions(oid) })) });
  }
  const files: Record<string, Uint8Array | string> = { ...repo.files };
  for (const line of json.split('\n')) {
    const { key, value } = JSON.parse(line) as { key: string; value: { path: string; oid: string; content: string } };
    if (key === 'lfsFile') files[value.path] = writes.objects.get(value.oid) as Buffer;
    if (key === 'file') files[value.path] = Buffer.from(value.content, 'base64');
  }
  writes.repos.set(name, { ...repo, files });
  const oid = createHash('sha1').update(name);
  for (const [file, content] of Object.entries(files)) oid.update(file).update(content);
  return send(200, { commitOid: oid.digest('hex'), commitUrl: `${ownUrl}/${name}`, hookOutput: '' });
}
