/**
 * One episode of an environment as a trajectory. Layer 5. Each observation is a message of the user, each reply of the policy an action; the
 * reward is the sum over the episode.
 */
import { randomUUID } from 'node:crypto';
import type OpenAI from 'openai';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { deriveSeed } from '../core/rng.ts';
import { type ChatChoice, type ChatMessage, Trajectory } from '../core/trajectory.ts';
import type { ChatModel } from '../sdk/model.ts';
import type { Environment, StepResult } from './environment.ts';

type Action = Readonly<Record<string, unknown>>;

export interface EnvironmentRolloutOptions {
  readonly systemPrompt?: string;
  /** What the policy sees of an observation; default its JSON. */
  readonly showObservation?: (observation: StepResult['observation']) => string;
  /** The action in a reply; null: there is none. */
  readonly parseAction: (reply: string, observation: StepResult['observation']) => Action | null;
  /** Reward of a reply without an action, which ends the episode; default −1. */
  readonly invalidReward?: number;
  /** Also credits each reply with what it earned, by `turnRewards`, beside the credit of the whole episode; default false. */
  readonly creditTurns?: boolean;
  /** Parameters of the reset; `seed` is the rollout's own where it has one. */
  readonly reset?: Readonly<Record<string, unknown>>;
  /** Replies of the policy; default 50. */
  readonly maxTurns?: number;
  /** Of one reply; default 256. */
  readonly maxTokens?: number;
  /** Default 1, as training wants it. */
  readonly temperature?: number;
  /** Of the environment, and through `deriveSeed(seed, turn)` of each reply; default: the servers draw theirs. */
  readonly seed?: number;
  /** Limit of each call of the environment; default 60 s. */
  readonly timeoutMs?: number;
  /** Policy step to use; default the newest. */
  readonly step?: number;
  readonly signal?: AbortSignal;
}

const optionNames = [
  'systemPrompt',
  'showObservation',
  'parseAction',
  'invalidReward',
  'creditTurns',
  'reset',
  'maxTurns',
  'maxTokens',
  'temperature',
  'seed',
  'timeoutMs',
  'step',
  'signal',
];

/**
 * Plays one episode. Metrics: `turns`, `has_finished` (the environment ended it) and `invalid_action`. Throws what the environment and the
 * policy's server throw; the session is the caller's to close.
 */
export async function environmentRollout(
  model: ChatModel,
  environment: Environment,
  options: EnvironmentRolloutOptions,
): Promise<Trajectory> {
  refuseUnknownKeys('environmentRollout', options, optionNames);
  const { systemPrompt, showObservation = JSON.stringify, maxTurns = 50, seed, timeoutMs, signal } = options;
  requireIntegers('environmentRollout', { maxTurns }, 1);
  const system: ChatMessage[] = systemPrompt === undefined ? [] : [{ role: 'system', content: systemPrompt }];
  const trajectory = new Trajectory({ messagesAndChoices: system });
  const headers = { 'x-art-rollout': randomUUID() };
  const earned: number[] = [];
  const metrics = { turns: 0, has_finished: false, invalid_action: false };
  let now = await environment.reset({ ...(seed !== undefined && { seed }), ...options.reset }, { timeoutMs, signal });
  while (!now.done && metrics.turns < maxTurns) {
    trajectory.messagesAndChoices.push({ role: 'user', content: showObservation(now.observation) });
    const body = createRequest(model, trajectory, metrics.turns, options);
    const completion = await model.openaiClient().chat.completions.create(body, { headers, ...(signal && { signal }) });
    const choice = completion.choices[0] as ChatChoice;
    trajectory.messagesAndChoices.push(choice);
    metrics.turns++;
    const action = options.parseAction(choice.message.content ?? '', now.observation);
    if (action === null) {
      metrics.invalid_action = true;
      earned.push(options.invalidReward ?? -1);
      break;
    }
    now = await environment.step(action, { timeoutMs, signal });
    earned.push(now.reward ?? 0);
  }
  metrics.has_finished = now.done;
  trajectory.reward = earned.reduce((sum, reward) => sum + reward, 0);
  if (options.creditTurns === true) trajectory.turnRewards = earned;
  Object.assign(trajectory.metrics, metrics);
  return trajectory.finish();
}

function createRequest(
  model: ChatModel,
  trajectory: Trajectory,
  turn: number,
  { maxTokens = 256, temperature = 1, seed, step }: EnvironmentRolloutOptions,
): OpenAI.ChatCompletionCreateParamsNonStreaming {
  return {
    model: model.getInferenceName(step),
    messages: trajectory.messages() as unknown as OpenAI.ChatCompletionMessageParam[],
    max_tokens: maxTokens,
    temperature,
    ...(seed !== undefined && { seed: deriveSeed(seed, turn) }),
  };
}
