/**
 * Trajectories as a judge sees them: messages without what only our server needs, equal ones once, too long ones refused or shortened.
 * Layer 5. Pure functions.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import { canonicalJson } from '../core/json.ts';
import { requireIntegers } from '../core/options.ts';
import { type ChatChoice, type ChatMessage, isChoice } from '../core/trajectory.ts';

/** What may be judged: a `Trajectory` is one. */
export interface JudgedTrajectory {
  readonly messagesAndChoices: readonly (ChatMessage | ChatChoice)[];
  readonly tools?: readonly object[] | null;
  readonly additionalHistories?: readonly Pick<JudgedTrajectory, 'messagesAndChoices' | 'tools'>[];
}

export interface HistoryView {
  readonly messages: readonly object[];
  readonly tools: readonly object[] | null;
}

/** What the judge is shown of one trajectory; `main` first, then the additional histories. */
export interface TrajectoryView {
  readonly histories: readonly [HistoryView, ...HistoryView[]];
  readonly groundTruth?: unknown;
  readonly environmentState?: unknown;
}

/**
 * The messages of all histories. The field `art` is left out, and ids of tool calls are numbered in order, so that trajectories that say the
 * same are the same.
 */
export function viewTrajectory(trajectory: JudgedTrajectory): TrajectoryView {
  const callIds = new Map<string, string>();
  const view = ({ messagesAndChoices, tools }: JudgedTrajectory): HistoryView => ({
    messages: messagesAndChoices.map((entry) => viewMessage(isChoice(entry) ? entry.message : entry, callIds)),
    tools: tools ?? null,
  });
  return { histories: [view(trajectory), ...(trajectory.additionalHistories ?? []).map(view)] };
}

function viewMessage(message: object, callIds: Map<string, string>): object {
  const number = (id: unknown): unknown => {
    if (typeof id !== 'string') return id;
    if (!callIds.has(id)) callIds.set(id, `call_${callIds.size + 1}`);
    return callIds.get(id);
  };
  const { art: _art, tool_calls, tool_call_id, ...shown } = message as Record<string, unknown>;
  for (const [name, value] of Object.entries(shown)) if (value === null || value === undefined) delete shown[name];
  return {
    ...shown,
    ...(Array.isArray(tool_calls) && {
      tool_calls: tool_calls.map((call: Record<string, unknown>) => ({ ...call, id: number(call.id) })),
    }),
    ...(tool_call_id !== undefined && { tool_call_id: number(tool_call_id) }),
  };
}

/** Number of leading messages of the main history that all views share. */
export function sharedMessages(views: readonly TrajectoryView[]): number {
  const lists = views.map(({ histories: [main] }) => main.messages.map(canonicalJson));
  const [first = []] = lists;
  if (lists.length < 2) return 0;
  let count = 0;
  while (count < first.length && lists.every((list) => list[count] === first[count])) count++;
  return count;
}

/** The tools of every history of every view, if they are all the same; else null, and each history shows its own. */
export function sharedTools(views: readonly TrajectoryView[]): readonly object[] | null {
  const all = views.flatMap(({ histories }) => histories.map(({ tools }) => tools));
  const first = all[0] ?? null;
  return first !== null && all.every((tools) => canonicalJson(tools) === canonicalJson(first)) ? first : null;
}

/** The views without repeats, and for each given view its index among them. */
export function uniqueViews(views: readonly TrajectoryView[]): {
  readonly unique: readonly TrajectoryView[];
  readonly indexes: readonly number[];
} {
  const unique: TrajectoryView[] = [];
  const indexOf = new Map<string, number>();
  const indexes = views.map((view) => {
    const content = canonicalJson(view);
    const index = indexOf.get(content) ?? unique.push(view) - 1;
    indexOf.set(content, index);
    return index;
  });
  return { unique, indexes };
}

export interface LengthLimit {
  /** Characters of JSON of the shared beginning, and of each trajectory's rest. */
  readonly maxCharacters: number;
  /** What happens beyond: DataError, or the middle of long texts and of long histories is left out. */
  readonly onTooLong: 'error' | 'elide';
}

export function checkLengthLimit({ maxCharacters, onTooLong }: LengthLimit): void {
  requireIntegers('ruler', { maxCharacters }, 1000);
  if (onTooLong !== 'error' && onTooLong !== 'elide') {
    throw new ConfigError(`ruler: onTooLong must be 'error' or 'elide', got ${String(onTooLong)}`);
  }
}

const SHORTEST_TEXT = 100;

/**
 * Messages within the limit: first long texts lose their middle, then the history loses its middle messages. What was left out is said in
 * its place, and `elidedCharacters` counts it. Throws DataError that names `what` if that is not allowed or not enough.
 */
export function fitMessages(
  messages: readonly object[],
  { maxCharacters, onTooLong }: LengthLimit,
  what: string,
): { readonly messages: readonly object[]; readonly elidedCharacters: number } {
  const size = sizeOf(messages);
  if (size <= maxCharacters) return { messages, elidedCharacters: 0 };
  if (onTooLong === 'error') {
    throw new DataError(
      `ruler: ${what} must have at most ${maxCharacters} characters of JSON (maxCharacters), got ${size}; onTooLong 'elide' leaves out the middle`,
    );
  }
  let [low, high] = [SHORTEST_TEXT, size];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (sizeOf(elideTexts(messages, middle)) <= maxCharacters) low = middle;
    else high = middle - 1;
  }
  let fitted = elideTexts(messages, low) as readonly object[];
  for (let kept = fitted.length - 1; kept >= 1 && sizeOf(fitted) > maxCharacters; kept--) {
    fitted = keepEnds(elideTexts(messages, low) as readonly object[], kept);
  }
  if (sizeOf(fitted) > maxCharacters) {
    throw new DataError(`ruler: ${what} must fit into ${maxCharacters} characters (maxCharacters), got ${size}`);
  }
  return { messages: fitted, elidedCharacters: size - sizeOf(fitted) };
}

function sizeOf(messages: unknown): number {
  return JSON.stringify(messages).length;
}

function elideTexts(value: unknown, longest: number): unknown {
  if (typeof value === 'string') {
    if (value.length <= longest) return value;
    const half = Math.floor(longest / 2);
    return `${value.slice(0, half)} [… ${value.length - 2 * half} characters left out …] ${value.slice(-half)}`;
  }
  if (Array.isArray(value)) return value.map((item) => elideTexts(item, longest));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, elideTexts(item, longest)]));
}

function keepEnds(messages: readonly object[], kept: number): readonly object[] {
  const head = Math.floor(kept / 2);
  const tail = kept - head;
  const note = { left_out: `${messages.length - kept} messages` };
  return [...messages.slice(0, head), note, ...messages.slice(messages.length - tail)];
}
