/**
 * From the calls of a rollout to trajectories as `train` takes them. Layer 5.
 * A call whose prompt repeats all ids of an earlier turn continues that history; any other begins one: a sub-agent, a summary, a prompt
 * that rewrites what was said. All histories of a rollout share its reward.
 */
import type { PlainMessage, ToolDefinition } from '../../core/chat.ts';
import { refuse } from '../../wire/errors.ts';
import type { RolloutGroup, RolloutHistory } from '../../wire/rollouts.ts';
import type { TrainRequest, WireGroup, WireTrajectory } from '../../wire/training.ts';
import type { CompletionRecord, StoredCompletion } from '../inference/served-model.ts';
import { type Rollout, type RolloutBook, unknownRollout } from './rollouts.ts';

interface History {
  readonly turns: StoredCompletion[];
  /** Ids of the newest turn: its prompt and what was sampled. */
  tip: readonly number[];
}

/** The turns, in the order they were sampled, as the histories they form, in the order of their first calls. */
export function splitHistories(turns: readonly StoredCompletion[]): readonly (readonly StoredCompletion[])[] {
  const histories: History[] = [];
  for (const turn of turns) {
    const parent = longestPrefix(turn, histories);
    if (parent === null) histories.push({ turns: [turn], tip: tipOf(turn) });
    else {
      parent.turns.push(turn);
      parent.tip = tipOf(turn);
    }
  }
  const startOf = ([first]: readonly StoredCompletion[]): number => first?.call?.startedAt ?? 0;
  return histories.map((history) => history.turns).sort((a, b) => startOf(a) - startOf(b));
}

/** Tools that a turn had: its own, or those of the turn that it goes on from, which is not kept twice. `turns`: all of the rollout. */
function toolsOf(turn: StoredCompletion, turns: readonly StoredCompletion[]): RolloutHistory['tools'] {
  const { tools = [], messages = [] } = turn.call ?? {};
  if (tools.length > 0) return tools.map(toWireTool);
  if (!messages.some(({ role }) => role === 'assistant')) return null;
  const { length } = turn.record.promptIds;
  const earlier = turns.filter(({ record }) => record.promptIds.length < length);
  const parents = earlier.map((each) => ({ turn: each, tip: tipOf(each) }));
  const parent = longestPrefix(turn, parents);
  return parent === null ? null : toolsOf(parent.turn, turns);
}

/** Of those whose ids the prompt of `turn` repeats the longest one. */
function longestPrefix<T extends { readonly tip: readonly number[] }>(
  turn: StoredCompletion,
  parents: readonly T[],
): T | null {
  let longest: T | null = null;
  for (const parent of parents) {
    const isLonger = longest === null || parent.tip.length > longest.tip.length;
    if (isLonger && startsWith(turn.record.promptIds, parent.tip)) longest = parent;
  }
  return longest;
}

function tipOf({ record }: StoredCompletion): readonly number[] {
  return [...record.promptIds, ...record.tokenIds];
}

/** A history as `train` takes it: messages and choices, each once, and its tools. `turns`: all of the rollout. */
function wireHistory(
  history: readonly StoredCompletion[],
  turns: readonly StoredCompletion[],
): Pick<WireTrajectory, 'entries' | 'tools'> {
  const entries = placeTurns(history).map(({ message, turn }) =>
    turn === null ? { message } : { message, choice: referTo(turn.record) },
  );
  const [first] = history;
  const tools = first === undefined ? null : toolsOf(first, turns);
  return { entries, ...(tools !== null && { tools }) };
}

/** All that a client is told of a history. `turns`: all of the rollout. */
export function describeHistory(
  history: readonly StoredCompletion[],
  turns: readonly StoredCompletion[],
): RolloutHistory {
  const entries = placeTurns(history).map(({ message, turn }) => {
    if (turn === null) return { message };
    const { record, call } = turn;
    return {
      message,
      choice: referTo(record),
      policy_step: record.policyStep,
      finish_reason: record.finishReason === 'stop' && 'tool_calls' in message ? 'tool_calls' : record.finishReason,
      prompt_tokens: record.promptIds.length,
      completion_tokens: record.tokenIds.length,
      ...(call !== null && { sampled_at: call.sampledAt / 1000 }),
    } as const;
  });
  const [first] = history;
  return { entries, tools: first === undefined ? null : toolsOf(first, turns) };
}

/** Messages in order, each once, and for those that were sampled their turn. */
function placeTurns(
  turns: readonly StoredCompletion[],
): { readonly message: WireMessage; readonly turn: StoredCompletion | null }[] {
  let known = 0;
  return turns.flatMap((turn) => {
    const { messages = [], reply = { role: 'assistant', content: '' } as const } = turn.call ?? {};
    const added = messages.slice(known).map((message) => ({ message: toWireMessage(message), turn: null }));
    known = messages.length + 1;
    return [...added, { message: toWireMessage(reply), turn }];
  });
}

function referTo({ completionId, choiceIndex }: CompletionRecord): { completion_id: string; choice_index: number } {
  return { completion_id: completionId, choice_index: choiceIndex };
}

/** What a `train` request trains: its groups with those of rollouts filled in, and which rollouts they are. */
export interface ResolvedGroups {
  readonly groups: readonly WireGroup[];
  readonly rolloutIds: readonly string[];
  /** Rollouts that an earlier step had trained. */
  readonly skipped: number;
}

/**
 * Throws ApiError 404 for an unknown rollout, 409 for one that is not finished, belongs to another `train` call, or is trained already
 * (unless the request skips those), 400 for one that stands twice.
 */
export function resolveGroups(
  request: Pick<TrainRequest, 'groups' | 'trained_rollouts'>,
  book: RolloutBook,
): ResolvedGroups {
  const ids = new Set<string>();
  let skipped = 0;
  const groups = request.groups.flatMap((group, index) => {
    if (!isRolloutGroup(group)) return [group];
    const trajectories = rolloutsOf(group, book).flatMap((rollout) => {
      const where = `groups[${index}]`;
      if (ids.has(rollout.id))
        throw refuse(
          400,
          'invalid_value',
          `${where}: rollout ${rollout.id} must stand in one group, got it twice`,
          where,
        );
      ids.add(rollout.id);
      if (rollout.state === 'trained' && request.trained_rollouts === 'skip') {
        skipped += 1;
        ids.delete(rollout.id);
        return [];
      }
      return [toTrajectory(rollout, book, where)];
    });
    return trajectories.length === 0 ? [] : [{ trajectories, exceptions: [], metrics: {}, metadata: {}, logs: [] }];
  });
  return { groups, rolloutIds: [...ids], skipped };
}

function isRolloutGroup(group: WireGroup | RolloutGroup): group is RolloutGroup {
  return 'rollouts' in group || 'group' in group;
}

function rolloutsOf(group: RolloutGroup, book: RolloutBook): readonly Rollout[] {
  if ('rollouts' in group) {
    return group.rollouts.map((id) => {
      const rollout = book.get(id);
      if (rollout === null) throw unknownRollout(id);
      return rollout;
    });
  }
  const rollouts = book.list({ group: group.group }).filter(({ state }) => state === 'finished' || state === 'trained');
  if (rollouts.length === 0) {
    throw refuse(404, 'group_not_found', `group ${group.group}: must have at least one finished rollout, got none`);
  }
  // By id, so that the order does not depend on which one ended first.
  return [...rollouts].sort((a, b) => (a.id < b.id ? -1 : 1));
}

function toTrajectory(rollout: Rollout, book: RolloutBook, where: string): WireTrajectory {
  const { id, state, outcome, trainedStep } = rollout;
  if (state === 'trained') {
    const mend = "leave it out, or send trained_rollouts: 'skip'";
    throw refuse(
      409,
      'rollout_trained',
      `${where}: rollout ${id} must be trained once, step ${trainedStep} did; ${mend}`,
      where,
    );
  }
  if (state === 'captured') {
    const message = `${where}: rollout ${id} was captured: the client that took its turns trains them`;
    throw refuse(409, 'rollout_captured', message, where);
  }
  if (state !== 'finished' || outcome === null) {
    throw refuse(
      409,
      'rollout_not_finished',
      `${where}: rollout ${id} must be finished by a reward, is ${state}`,
      where,
    );
  }
  if (book.isReserved(id)) {
    throw refuse(
      409,
      'rollout_in_training',
      `${where}: rollout ${id} must be trained once, another train call has it`,
      where,
    );
  }
  const turns = book.turns(rollout);
  if (turns === null) {
    throw refuse(
      409,
      'rollout_expired',
      `${where}: rollout ${id} must be kept whole, some of its turns are not; roll out again`,
      where,
    );
  }
  const [main = { entries: [] }, ...others] = splitHistories(turns).map((history) => wireHistory(history, turns));
  return {
    ...main,
    ...(others.length > 0 && { additional_histories: others }),
    reward: outcome.reward,
    metrics: { ...outcome.metrics },
    metadata: { ...outcome.metadata },
    logs: [],
  };
}

type WireMessage = WireTrajectory['entries'][number]['message'];

function toWireMessage(message: PlainMessage): WireMessage {
  const { role, content, reasoning, toolCalls, name, tool_call_id } = message;
  const hasToolCalls = toolCalls !== undefined && toolCalls.length > 0;
  return {
    role,
    content: hasToolCalls && content === '' ? null : content,
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(hasToolCalls && {
      tool_calls: toolCalls.map((call) => ({
        id: call.id,
        type: 'function',
        function: { name: call.name, arguments: call.arguments },
      })),
    }),
    ...(name !== undefined && { name }),
    ...(tool_call_id !== undefined && { tool_call_id }),
  };
}

function toWireTool({ name, description, parameters, isStrict }: ToolDefinition): Record<string, unknown> {
  return {
    type: 'function',
    function: { name, ...(description !== null && { description }), parameters, ...(isStrict && { strict: true }) },
  };
}

function startsWith(ids: readonly number[], prefix: readonly number[]): boolean {
  return prefix.length <= ids.length && prefix.every((id, t) => id === ids[t]);
}
