/**
 * What a rollout leaves behind: `Trajectory` and `TrajectoryGroup`. Layer 0, no I/O.
 * A trajectory refers to what the policy sampled by completion id; the server that sampled it holds the token ids and logprobs.
 */
import { DataError } from './errors.ts';

/** A chat message in OpenAI's shape. `content` is text; more fields (name, tool calls) pass through untouched. */
export interface ChatMessage {
  readonly role: 'system' | 'developer' | 'user' | 'assistant' | 'tool';
  readonly content?: unknown;
  readonly [field: string]: unknown;
}

/** What our server adds to every choice it returns; unknown to, and kept by, OpenAI's client. */
export interface ChoiceOrigin {
  readonly completion_id: string;
  /** The policy step that sampled this choice. */
  readonly policy_step: number;
}

/** One choice of a chat completion as OpenAI's client returns it: a turn of the policy. */
export interface ChatChoice {
  readonly index: number;
  readonly finish_reason: string;
  readonly message: {
    readonly role: string;
    readonly content?: string | null;
    readonly tool_calls?: readonly object[];
    /** What the policy thought before it answered. */
    readonly reasoning_content?: string | null;
  };
  readonly art?: ChoiceOrigin;
}

export interface TrajectoryInit {
  /** Messages that the agent sent and choices that the policy sampled, in order. Only choices are trained. */
  readonly messagesAndChoices?: readonly (ChatMessage | ChatChoice)[];
  readonly reward?: number;
  readonly metrics?: Readonly<Record<string, number | boolean>>;
  readonly metadata?: Readonly<Record<string, string | number | boolean | null>>;
  readonly logs?: readonly string[];
}

/** Whether an entry of `messagesAndChoices` is a sampled choice. */
export function isChoice(entry: ChatMessage | ChatChoice): entry is ChatChoice {
  return typeof entry === 'object' && entry !== null && 'message' in entry && 'finish_reason' in entry;
}

/** The result of one rollout. Fields are plain and mutable: push to `messagesAndChoices`, set `reward`. */
export class Trajectory {
  messagesAndChoices: (ChatMessage | ChatChoice)[];
  /** Scalar of the whole trajectory; must be finite when it is trained on. */
  reward: number;
  metrics: Record<string, number | boolean>;
  metadata: Record<string, string | number | boolean | null>;
  logs: string[];
  readonly #startedAt: number = performance.now();

  constructor(init: TrajectoryInit = {}) {
    this.messagesAndChoices = [...(init.messagesAndChoices ?? [])];
    this.reward = init.reward ?? 0;
    this.metrics = { ...init.metrics };
    this.metadata = { ...init.metadata };
    this.logs = [...(init.logs ?? [])];
  }

  /** The conversation as chat messages: what to send in the next request. */
  messages(): ChatMessage[] {
    return this.messagesAndChoices.map((entry) => (isChoice(entry) ? (entry.message as ChatMessage) : entry));
  }

  log(message: string): void {
    this.logs.push(message);
  }

  /** Records the wall time since construction as the metric `duration`, in seconds, and returns the trajectory. */
  finish(): this {
    this.metrics.duration = (performance.now() - this.#startedAt) / 1000;
    return this;
  }
}

/** A rollout that failed: data of its group, not a thrown error. */
export interface RolloutException {
  readonly type: string;
  readonly message: string;
}

export interface TrajectoryGroupInit {
  readonly exceptions?: readonly RolloutException[];
  readonly metrics?: Readonly<Record<string, number | boolean>>;
  readonly metadata?: Readonly<Record<string, string | number | boolean | null>>;
  readonly logs?: readonly string[];
}

/** Trajectories of one scenario; advantages are relative inside it. */
export class TrajectoryGroup implements Iterable<Trajectory> {
  trajectories: Trajectory[];
  exceptions: RolloutException[];
  metrics: Record<string, number | boolean>;
  metadata: Record<string, string | number | boolean | null>;
  logs: string[];

  constructor(trajectories: Iterable<Trajectory>, init: TrajectoryGroupInit = {}) {
    this.trajectories = [...trajectories];
    for (const [index, trajectory] of this.trajectories.entries()) {
      if (!(trajectory instanceof Trajectory)) {
        throw new DataError(`TrajectoryGroup: every entry must be a Trajectory, got ${typeof trajectory} at ${index}`);
      }
    }
    this.exceptions = [...(init.exceptions ?? [])];
    this.metrics = { ...init.metrics };
    this.metadata = { ...init.metadata };
    this.logs = [...(init.logs ?? [])];
  }

  get length(): number {
    return this.trajectories.length;
  }

  [Symbol.iterator](): Iterator<Trajectory> {
    return this.trajectories[Symbol.iterator]();
  }
}
