/** Sampled turns by the key of their history, bounded in tokens. Layer 5. */

/** One id sequence of a text history. Arrays are those of the completion record, not copies. */
export interface SampledTurn {
  readonly promptText: string;
  readonly promptIds: readonly number[];
  readonly tokenIds: readonly number[];
}

interface Turn extends SampledTurn {
  /** Ids of the completions that sampled it, and of their tool calls. */
  readonly names: Set<string>;
}

/** Greedy sampling of one prompt may repeat a turn forever; only its newest names are kept. */
const maxNamesPerTurn = 4096;

export interface TurnStore {
  /** The turn that has the first of the names that any has; without one the shortest, then the first in lexicographic order. */
  find(key: string, names: readonly string[]): SampledTurn | undefined;
  put(key: string, sampled: SampledTurn, names: readonly string[]): void;
}

/** The turns that were not used for longest are dropped first. */
export function createTurnStore(maxTokens: number): TurnStore {
  // A map keeps the order of insertion; using an entry moves it to the end.
  const turnsOf = new Map<string, Turn[]>();
  let tokens = 0;
  const touch = (key: string): Turn[] => {
    const turns = turnsOf.get(key) ?? [];
    turnsOf.delete(key);
    turnsOf.set(key, turns);
    return turns;
  };
  const dropOldest = (kept: string): void => {
    for (const [key, turns] of turnsOf) {
      if (tokens <= maxTokens || key === kept) return;
      tokens -= turns.reduce((sum, turn) => sum + sizeOf(turn), 0);
      turnsOf.delete(key);
    }
  };
  return {
    find: (key, names) => {
      if (!turnsOf.has(key)) return undefined;
      const turns = touch(key);
      for (const name of names) {
        const named = turns.filter((turn) => turn.names.has(name));
        if (named.length > 0) return firstOf(named);
      }
      return firstOf(turns);
    },
    put: (key, sampled, names) => {
      const turns = touch(key);
      let turn = turns.find((candidate) => compareIds(candidate, sampled) === 0);
      if (turn === undefined) {
        turn = { ...sampled, names: new Set() };
        turns.push(turn);
        tokens += sizeOf(turn);
      }
      for (const name of names) turn.names.add(name);
      for (const name of turn.names) {
        if (turn.names.size <= maxNamesPerTurn) break;
        turn.names.delete(name);
      }
      dropOldest(key);
    },
  };
}

function firstOf(turns: readonly Turn[]): Turn {
  return turns.reduce((best, turn) => (compareIds(turn, best) < 0 ? turn : best));
}

type Ids = Pick<Turn, 'promptIds' | 'tokenIds'>;

function sizeOf(turn: Ids): number {
  return turn.promptIds.length + turn.tokenIds.length;
}

/** Shorter first, then lexicographic over (prompt ids, sampled ids). */
function compareIds(a: Ids, b: Ids): number {
  const bySize = sizeOf(a) - sizeOf(b) || a.promptIds.length - b.promptIds.length;
  return bySize || compareLists(a.promptIds, b.promptIds) || compareLists(a.tokenIds, b.tokenIds);
}

function compareLists(a: readonly number[], b: readonly number[]): number {
  if (a === b) return 0;
  for (let i = 0; i < a.length; i++) {
    const difference = (a[i] as number) - (b[i] as number);
    if (difference !== 0) return difference;
  }
  return 0;
}
