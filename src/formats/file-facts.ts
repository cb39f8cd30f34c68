/** What can be told of a file without understanding it. Layer 1. */
import { createHash, type Hash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { isMissing } from './atomic-files.ts';

/** Hexadecimal hash of a file's bytes, a piece at a time; `hash` may have seen bytes already. Throws what the file system says. */
export async function hashFile(path: string, hash: Hash = createHash('sha256')): Promise<string> {
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
  return hash.digest('hex');
}

/** 0 where there is no such file. */
export async function fileBytes(path: string): Promise<number> {
  try {
    return (await stat(path)).size;
  } catch (error) {
    if (isMissing(error)) return 0;
    throw error;
  }
}
