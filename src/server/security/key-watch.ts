/** Cuts answers that are still open when the key they were asked for with is revoked or expires. Layer 5. */
import type { ServerResponse } from 'node:http';
import type { KeyStore } from './keys.ts';

export interface KeyWatch {
  /** Until the answer is complete. */
  readonly watch: (keyId: string, answer: ServerResponse) => void;
}

/** As often as the keys are read again. */
const checkMs = 1_000;

/** The client sees a connection that breaks; what it asks next is answered 401. */
export function createKeyWatch(keys: KeyStore): KeyWatch {
  const open = new Map<string, Set<ServerResponse>>();
  let timer: NodeJS.Timeout | undefined;
  const check = async (): Promise<void> => {
    await keys.refresh();
    for (const [keyId, answers] of open) {
      if (keys.isGood(keyId)) continue;
      for (const answer of answers) answer.destroy();
    }
  };
  return {
    watch: (keyId, answer) => {
      const answers = open.get(keyId) ?? new Set();
      open.set(keyId, answers.add(answer));
      timer ??= setInterval(() => void check(), checkMs).unref();
      answer.once('close', () => {
        answers.delete(answer);
        if (answers.size === 0 && open.get(keyId) === answers) open.delete(keyId);
        if (open.size > 0) return;
        clearInterval(timer);
        timer = undefined;
      });
    },
  };
}
