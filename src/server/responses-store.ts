/** Stored responses, which later requests continue (`previous_response_id`), refer to or read. Layer 5. In memory, bounded. */
import type { KnownMessage } from '../wire/responses-input.ts';
import type { OutputItem, ResponseObject } from '../wire/responses-output.ts';

export interface StoredResponse {
  readonly response: ResponseObject;
  /** The whole conversation, the answer included; instructions are not part of it. */
  readonly messages: readonly KnownMessage[];
}

export interface ResponseStore {
  put(rolloutId: string | null, stored: StoredResponse): void;
  /** A response is known to the rollout that made it alone. */
  get(rolloutId: string | null, responseId: string): StoredResponse | undefined;
  findItem(rolloutId: string | null, responseId: string, itemId: string): OutputItem | undefined;
  /** Whether there was one. */
  delete(rolloutId: string | null, responseId: string): boolean;
}

/**
 * `maxCharacters`: characters of all conversations, those that several responses share counted for each; default 67,108,864. The oldest
 * responses are dropped first; one that is larger than the limit is kept until the next one comes.
 */
export function createResponseStore(maxCharacters: number = 2 ** 26): ResponseStore {
  const entries = new Map<string, { readonly stored: StoredResponse; readonly size: number }>();
  let characters = 0;
  const keyOf = (rolloutId: string | null, responseId: string): string => `${responseId} ${rolloutId ?? ''}`;
  const get = (rolloutId: string | null, responseId: string): StoredResponse | undefined =>
    entries.get(keyOf(rolloutId, responseId))?.stored;
  const remove = (key: string): boolean => {
    characters -= entries.get(key)?.size ?? 0;
    return entries.delete(key);
  };
  return {
    put: (rolloutId, stored) => {
      const size = sizeOf(stored);
      const key = keyOf(rolloutId, stored.response.id);
      remove(key);
      entries.set(key, { stored, size });
      characters += size;
      for (const oldest of entries.keys()) {
        if (characters <= maxCharacters || oldest === key) break;
        remove(oldest);
      }
    },
    get,
    findItem: (rolloutId, responseId, itemId) =>
      get(rolloutId, responseId)?.response.output.find((item) => item.id === itemId),
    delete: (rolloutId, responseId) => remove(keyOf(rolloutId, responseId)),
  };
}

function sizeOf({ response, messages }: StoredResponse): number {
  const ofMessages = messages.reduce((sum, { message }) => {
    const ofCalls = (message.toolCalls ?? []).reduce((total, call) => total + call.arguments.length + 64, 0);
    return sum + message.content.length + (message.reasoning?.length ?? 0) + ofCalls + 64;
  }, 0);
  return ofMessages + JSON.stringify(response).length;
}
