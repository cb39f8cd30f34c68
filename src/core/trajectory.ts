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
  /** How many tokens were sampled for it. */
  readonly completion_tokens?: number;
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

/** One conversation of a trajectory: what was sent and what the policy sampled, in order, and the tools that it had (OpenAI's definitions). */
export interface History {
  messagesAndChoices: (ChatMessage | ChatChoice)[];
  tools: readonly object[] | null;
}

export interface HistoryInit {
  readonly messagesAndChoices: readonly (ChatMessage | ChatChoice)[];
  readonly tools?: readonly object[] | null;
}

export interface TrajectoryInit {
  /** Messages that the agent sent and choices that the policy sampled, in order. Only choices are trained. */
  readonly messagesAndChoices?: readonly (ChatMessage | ChatChoice)[];
  /** OpenAI's definitions of the tools that the agent had; default null, none. */
  readonly tools?: readonly object[] | null;
  /** Further conversations under the same reward: of sub-agents, before a summary took a history's place. */
  readonly additionalHistories?: readonly HistoryInit[];
  readonly reward?: number;
  /** Credit of single turns beside `reward`: none, or one for each choice of `allChoices()`. */
  readonly turnRewards?: readonly number[];
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
  tools: readonly object[] | null;
  additionalHistories: History[];
  /** Scalar of the whole trajectory; reads 0 before it is set. Must be set, and finite, when it is trained on. */
  declare reward: number;
  /** Empty, or one for each choice of `allChoices()`, in that order. */
  turnRewards: number[];
  metrics: Record<string, number | boolean>;
  metadata: Record<string, string | number | boolean | null>;
  logs: string[];
  readonly #startedAt: number = performance.now();
  #reward: number | undefined;

  constructor(init: TrajectoryInit = {}) {
    this.messagesAndChoices = [...(init.messagesAndChoices ?? [])];
    this.tools = init.tools ?? null;
    this.additionalHistories = (init.additionalHistories ?? []).map(({ messagesAndChoices, tools = null }) => ({
      messagesAndChoices: [...messagesAndChoices],
      tools,
    }));
    this.#reward = init.reward;
    // An own property, so that copies and JSON have it.
    Object.defineProperty(this, 'reward', {
      enumerable: true,
      get: () => this.#reward ?? 0,
      set: (reward: number) => {
        this.#reward = reward;
      },
    });
    this.turnRewards = [...(init.turnRewards ?? [])];
    this.metrics = { ...init.metrics };
    this.metadata = { ...init.metadata };
    this.logs = [...(init.logs ?? [])];
  }

  /** Whether a reward was given or assigned: a 0 that nobody meant is not trained on. */
  get isRewardSet(): boolean {
    return this.#reward !== undefined;
  }

  /** The conversation as chat messages: what to send in the next request. */
  messages(): ChatMessage[] {
    return this.messagesAndChoices.map((entry) => (isChoice(entry) ? (entry.message as ChatMessage) : entry));
  }

  /** What the policy sampled: the choices of the main history, then those of the additional ones, each in order. */
  allChoices(): ChatChoice[] {
    const others = this.additionalHistories.flatMap((history) => history.messagesAndChoices);
    return [...this.messagesAndChoices, ...others].filter(isChoice);
  }

  log(message: string): void {
    this.logs.push(message);
  }

  /** Does the work and adds its wall time to the metric `<name>_duration`, in seconds, also when it fails. */
  async trackDuration<T>(name: string, work: () => T | PromiseLike<T>): Promise<T> {
    const startedAt = performance.now();
    try {
      return await work();
    } finally {
      const metric = `${name}_duration`;
      this.metrics[metric] = Number(this.metrics[metric] ?? 0) + (performance.now() - startedAt) / 1000;
    }
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
  /** Where it was thrown, as Node tells it. */
  readonly stack?: string;
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
