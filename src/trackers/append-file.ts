/**
 * A file that only grows, crash-safe: what was acknowledged is on the disk, and what a failed or interrupted write left behind is written
 * over by the next try. Layer 6 (trackers).
 */
import { type FileHandle, mkdir, open } from 'node:fs/promises';
import { dirname } from 'node:path';

export interface AppendFile {
  /** Writes and flushes; on an error nothing counts as written. */
  append(bytes: Uint8Array): Promise<void>;
  close(): Promise<void>;
}

/** Opens or creates a file, with its folder. `findEnd` tells how many bytes of what is there are whole; what follows is cut off. */
export async function openAppendFile(
  path: string,
  findEnd: (file: FileHandle, size: number) => Promise<number>,
): Promise<AppendFile> {
  await mkdir(dirname(path), { recursive: true });
  const file = await open(path, 'a').then(async (created) => {
    await created.close();
    return open(path, 'r+');
  });
  const { size } = await file.stat();
  let length = await findEnd(file, size);
  if (length < size) await file.truncate(length);
  return {
    append: async (bytes) => {
      for (let written = 0; written < bytes.length; ) {
        written += (await file.write(bytes, written, bytes.length - written, length + written)).bytesWritten;
      }
      await file.datasync();
      length += bytes.length;
    },
    close: () => file.close(),
  };
}

/** For `openAppendFile`: a file of lines is whole up to its last line feed. */
export async function endOfLines(file: FileHandle, size: number): Promise<number> {
  const block = Buffer.alloc(65_536);
  for (let end = size; end > 0; end -= block.length) {
    const start = Math.max(0, end - block.length);
    const { bytesRead } = await file.read(block, 0, end - start, start);
    const last = block.subarray(0, bytesRead).lastIndexOf(0x0a);
    if (last !== -1) return start + last + 1;
  }
  return 0;
}
