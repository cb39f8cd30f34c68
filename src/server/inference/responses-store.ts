/** Stored responses, which later requests continue (`previous_response_id`), refer to or read. Layer 5. In memory, bounded. */
import type { KnownMessage } from '../../wire/known-message.ts';
import type { OutputItem, ResponseObject } from '../../wire/responses-output.ts';

export interface StoredResponse {
  readonly response: ResponseObject;
  /** The whole conversation, the answer included; instructions are not part of it. */
  readonly messages: readonly KnownMessage[];
}

/** What one owner stored; nobody else finds it. */
export interface OwnResponses {
  put(stored: StoredResponse): void;
  get(responseId: string): StoredResponse | undefined;
  findItem(responseId: string, itemId: string): OutputItem | undefined;
  /** Whether there was one. */
  delete(responseId: string): boolean;
}

export interface ResponseStore {
  of(owner: string): OwnResponses;
}

/**
 * `maxCharacters`: characters of all conversations, those that several responses share counted for each; default 67,108,864. The oldest
 * responses are dropped first; one that is larger than the limit is kept until the next one comes.
 */
export function createResponseStore(maxCharacters: number = 2 ** 26): ResponseStore {
  const entries = new Map<string, { readonly stored: StoredResponse; readonly size: number }>();
  let characters = 0;
  const remove = (key: string): boolean => {
    characters -= entries.get(key)?.size ?? 0;
    return entries.delete(key);
  };
  const put = (key: string, stored: StoredResponse): void => {
    const size = sizeOf(stored);
    remove(key);
    entries.set(key, { stored, size });
    characters += size;
    for (const oldest of entries.keys()) {
      if (characters <= maxCharacters || oldest === key) break;
      remove(oldest);
    }
  };
  return {
    of: (owner) => {
      const keyOf = (responseId: string): string => JSON.stringify([owner, responseId]);
      const get = (responseId: string): StoredResponse | undefined => entries.get(keyOf(responseId))?.stored;
      return {
        get,
        put: (stored) => put(keyOf(stored.response.id), stored),
        findItem: (responseId, itemId) => get(responseId)?.response.output.find((item) => item.id === itemId),
        delete: (responseId) => remove(keyOf(responseId)),
      };
    },
  };
}

function sizeOf({ response, messages }: StoredResponse): number {
  const ofMessages = messages.reduce((sum, { message }) => {
    const ofCalls = (message.toolCalls ?? []).reduce((total, call) => total + call.arguments.length + 64, 0);
    return sum + message.content.length + (message.reasoning?.length ?? 0) + ofCalls + 64;
  }, 0);
  return ofMessages + JSON.stringify(response).length;
}
