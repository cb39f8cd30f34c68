/** A message of a request, and which sampled turn it says it is. Layer 0. */
import type { PlainMessage } from '../core/chat.ts';

export interface KnownMessage {
  readonly message: PlainMessage;
  /** null = it does not say; the turn is then found by its text. */
  readonly completionId: string | null;
}
