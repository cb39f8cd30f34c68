/**
 * A checkpoint's place on the Hugging Face hub: a repository whose root is the adapter, so that PEFT loads it by its name. Layer 5.
 * Each push is one commit; older steps stay reachable by theirs. A pull reads one commit, whatever the branch does meanwhile.
 */
import { createHash } from 'node:crypto';
import { openAsBlob } from 'node:fs';
import { ConfigError, DataError } from '../../core/errors.ts';
import { type HubOptions, type HubSettings, readHubSettings } from '../../hub/options.ts';
import { type RemoteFile as HubFile, listRemoteFiles, openRemoteFile, resolveRevision } from '../../hub/requests.ts';
import { createRepository, makeCommit } from '../../hub/upload.ts';
import { type RemoteManifest, type RemoteStore, remoteManifestName } from './remote-store.ts';

export interface HubPlace {
  /** `org/name` */
  readonly repo: string;
  /** Branch; for a pull also a tag or commit. */
  readonly revision: string;
}

/** Files up to this size that are no LFS objects are read to compare them. */
const smallBytes = 16 * 2 ** 20;
/** The repository's attributes and card may be the user's own by now. */
const cardName = 'README.md';

/** Reads `hf://org/name[@revision]`. Throws ConfigError for one that cannot be. */
export function parseHubPlace(text: string): HubPlace {
  const name = String.raw`[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?`;
  const match = new RegExp(`^hf://(${name}/${name})(?:@([\\w./-]{1,200}))?$`).exec(text);
  const [, repo = '', revision = 'main'] = match ?? [];
  if (match !== null && !/--|\.\./.test(repo) && !/(^|\/)\.{0,2}(\/|$)/.test(revision)) return { repo, revision };
  throw new ConfigError(
    `remote: must be hf://org/name or hf://org/name@revision, got ${JSON.stringify(text.slice(0, 200))}`,
    {
      details: { param: 'remote' },
    },
  );
}

/** `title` names what is pushed, as in `demo/agent@3`. */
export async function createHubStore(
  { repo, revision }: HubPlace,
  title: string,
  options: HubOptions,
  signal: AbortSignal,
): Promise<RemoteStore> {
  const settings: HubSettings = { ...(await readHubSettings(options)), signal };
  if (settings.isOffline) throw new ConfigError('hf: the hub must be allowed, got HF_HUB_OFFLINE');
  const place = `hf://${repo}@${revision}`;
  let known: { readonly commit: string; readonly files: readonly HubFile[] } | null = null;
  const look = async (): Promise<NonNullable<typeof known>> => {
    const commit = known?.commit ?? (await resolveRevision(repo, revision, settings));
    known ??= { commit, files: await listRemoteFiles(repo, commit, settings) };
    return known;
  };
  const lookIfThere = (): Promise<typeof known> =>
    look().catch((error: unknown) => {
      if (
        error instanceof ConfigError &&
        ['hub_model_not_found', 'revision_not_found'].includes(String(error.details.code))
      )
        return null;
      throw error;
    });
  const read = async (name: string): Promise<Uint8Array> => {
    const { commit } = await look();
    const limit = AbortSignal.any([signal, AbortSignal.timeout(settings.requestTimeoutMs)]);
    return new Uint8Array(await (await openRemoteFile(repo, commit, name, 0, settings, limit)).arrayBuffer());
  };
  return {
    place,
    isVersioned: true,
    limits: settings,
    has: async ({ name, bytes, sha256 }) => {
      const file = (await lookIfThere())?.files.find(({ path }) => path === name);
      if (file === undefined || file.size !== bytes) return false;
      if (file.sha256 !== null) return file.sha256 === sha256;
      return (
        bytes <= smallBytes &&
        createHash('sha256')
          .update(await read(name))
          .digest('hex') === sha256
      );
    },
    upload: async (files, manifest, { onBytes }) => {
      const sizes = new Map(files.map(({ name, bytes }) => [name, bytes]));
      const there = await lookIfThere();
      if (there === null) await createRepository(repo, settings);
      const content = await Promise.all(
        files.map(async ({ name, path }) => ({ path: name, content: await openAsBlob(path) })),
      );
      const texts = [{ path: remoteManifestName, content: new Blob([`${JSON.stringify(manifest, null, 2)}\n`]) }];
      const hasCard = there?.files.some(({ path }) => path === cardName) ?? false;
      if (!hasCard) texts.push({ path: cardName, content: new Blob([createCard(manifest)]) });
      const onFile = (path: string): void => {
        onBytes(sizes.get(path) ?? 0);
        sizes.delete(path);
      };
      const commit = await makeCommit(
        { repo, branch: revision, title, files: [...content, ...texts], onFile },
        settings,
      );
      for (const path of sizes.keys()) onFile(path); // small ones travel in the commit itself
      known = { commit, files: await listRemoteFiles(repo, commit, settings) };
      return `hf://${repo}@${commit}`;
    },
    readManifest: async () => {
      try {
        return JSON.parse(Buffer.from(await read(remoteManifestName)).toString('utf8')) as unknown;
      } catch (error) {
        if (error instanceof ConfigError && error.details.code === 'file_not_found') return null;
        if (!(error instanceof SyntaxError)) throw error;
        throw new DataError(`${place}/${remoteManifestName}: must be JSON, got something else`, { cause: error });
      }
    },
    open: async (name, offset, stop) => openRemoteFile(repo, (await look()).commit, name, offset, settings, stop),
  };
}

/** What the hub's page and PEFT need to know; no metrics, no texts, no paths of this machine. */
function createCard({ model, checkpoint }: RemoteManifest): string {
  const isHubId = /^[\w.-]+\/[\w.-]+@/.test(model.base_model);
  const base = isHubId ? `base_model: ${model.base_model.split('@')[0]}\n` : '';
  return `---\nlibrary_name: peft\n${base}tags:\n- lora\n---\n\n# ${model.name}\n\nLoRA adapter (rank ${model.lora.rank}, alpha ${model.lora.alpha}) of policy step ${checkpoint.step}, trained with agent-reinforcement-trainer.\nmanifest.json says what it was made of; optimizer state is included, so training can go on from it.\n`;
}
