/** What the load's server process and its driver tell each other. */

export interface ServerReady {
  readonly kind: 'ready';
  readonly url: string;
}

/** Milliseconds between a request's entry into the engine and its last event, by the seed that the engine got. */
export interface EngineTimes {
  readonly kind: 'times';
  readonly milliseconds: readonly (readonly [seed: number, milliseconds: number])[];
}

export type FromServer = ServerReady | EngineTimes;

/** Asks for the times since the last question. */
export interface AskTimes {
  readonly kind: 'times';
}
