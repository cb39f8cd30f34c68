/**
 * Entry `agent-reinforcement-trainer/langchain`: a model for LangChain and LangGraph, and agents of theirs as rollouts. Layer 6.
 * Of `@langchain/openai`, an optional peer.
 */
import type { RunnableConfig } from '@langchain/core/runnables';
import { ChatOpenAI, type ChatOpenAIFields } from '@langchain/openai';
import { ConfigError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import type { Trajectory } from '../core/trajectory.ts';
import { type CaptureContext, type CaptureOptions, captureTrajectory } from '../sdk/capture.ts';
import { captureFetch } from '../sdk/capture-scope.ts';
import type { TrainableModel } from '../sdk/model.ts';
import type { ServedModel, ServedModelOptions } from './served-model.ts';

export type { ServedModel, ServedModelOptions } from './served-model.ts';

/** Fields of `ChatOpenAI`, but for what says which model it is. */
export type ChatModelOptions = ServedModelOptions &
  Omit<ChatOpenAIFields, 'model' | 'modelName' | 'apiKey' | 'openAIApiKey' | 'configuration'>;

const givenByModel = ['model', 'modelName', 'apiKey', 'openAIApiKey', 'configuration'];

/** `ChatOpenAI` on the model's server, for `createReactAgent`, `createAgent` and chains. Throws ConfigError for one that is not registered. */
export function initChatModel(model: ServedModel, options: ChatModelOptions = {}): ChatOpenAI {
  const odd = Object.keys(options).filter((name) => givenByModel.includes(name));
  if (odd.length > 0) throw new ConfigError(`initChatModel: the model says ${odd.join(', ')}; must not be options`);
  const { step, ...fields } = options;
  const { baseURL, apiKey } = model.endpoint();
  return new ChatOpenAI({
    ...fields,
    model: model.getInferenceName(step),
    apiKey,
    configuration: { baseURL, fetch: captureFetch },
  });
}

/** What LangGraph's graphs and LangChain's agents and chains have in common. */
export interface InvokableAgent<Input, Output> {
  invoke(input: Input, config?: Partial<RunnableConfig>): Promise<Output>;
}

export interface WrapOptions<Args extends readonly unknown[], Output> extends Omit<CaptureOptions, 'model'> {
  /** Reward from what the agent returned and what it was called with. */
  readonly reward?: (output: Output, ...args: Args) => number | Promise<number>;
}

/**
 * The agent, a function or what has `invoke`, as a function that gives the trajectory of its run. The reward is set on
 * `currentTrajectory()` while it runs, or by the option `reward`. Each call is one rollout: `() => rollout(scenario)` can be gathered.
 */
export function wrapRollout<Input, Output>(
  model: TrainableModel,
  agent: InvokableAgent<Input, Output>,
  options?: WrapOptions<readonly [input: Input], Output>,
): (input: Input) => Promise<Trajectory>;
export function wrapRollout<Args extends readonly unknown[], Output>(
  model: TrainableModel,
  agent: (...args: Args) => Output | PromiseLike<Output>,
  options?: WrapOptions<Args, Output>,
): (...args: Args) => Promise<Trajectory>;
export function wrapRollout<Args extends readonly unknown[], Output>(
  model: TrainableModel,
  agent: ((...args: Args) => Output | PromiseLike<Output>) | InvokableAgent<unknown, Output>,
  wrapOptions: WrapOptions<Args, Output> = {},
): (...args: Args) => Promise<Trajectory> {
  refuseUnknownKeys('wrapRollout', wrapOptions, ['reward', 'step', 'otherModels', 'signal']);
  const { reward, ...options } = wrapOptions;
  return async (...args) => {
    const run = ({ signal }: CaptureContext): Output | PromiseLike<Output> =>
      typeof agent === 'function' ? agent(...args) : agent.invoke(args[0], { signal });
    const { trajectory, output } = await captureTrajectory(run, { ...options, model });
    if (reward !== undefined) trajectory.reward = await reward(output, ...args);
    return trajectory;
  };
}
