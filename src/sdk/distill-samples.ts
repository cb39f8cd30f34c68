/**
 * Distillation by samples: a teacher behind any OpenAI-compatible endpoint answers prompts, and the student learns the answers that are good
 * enough. Layer 5. Needs no logprobs and no common vocabulary.
 */
import type { ChatCompletion } from 'openai/resources/chat/completions';
import { DataError } from '../core/errors.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { type ChatChoice, type ChatMessage, Trajectory, type TrajectoryGroup } from '../core/trajectory.ts';
import type { TrainResult } from './backend.ts';
import { gatherTrajectoryGroups, trajectoryGroup } from './gather.ts';
import type { GatherOptions } from './gather-run.ts';
import type { ChatModel, TrainableModel } from './model.ts';
import { retry } from './retry.ts';
import type { SftCallOptions, SftOptions } from './sft.ts';

/** What the teacher is asked: messages up to its turn, and the tools that it has. */
export interface SamplePrompt {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly object[] | null;
}

export interface DistillSamplesOptions extends Pick<GatherOptions, 'maxExceptions' | 'maxConcurrency' | 'timeoutMs'> {
  /** Any `Model` or `TrainableModel`. */
  readonly teacher: ChatModel;
  readonly prompts: readonly SamplePrompt[];
  /** Default 1. */
  readonly samplesPerPrompt?: number;
  /** Fields of each request beside `model`, `messages` and `tools`, in the endpoint's names: `{ temperature: 0.7, max_tokens: 512 }`. */
  readonly request?: Readonly<Record<string, unknown>>;
  /** Scores an answer; without it all are equally good. */
  readonly reward?: (trajectory: Trajectory, prompt: SamplePrompt) => number | Promise<number>;
  /** Answers below are not learned; default: none is. */
  readonly minReward?: number;
  /** Learn the best answer of each prompt alone; default false. */
  readonly bestOnly?: boolean;
  /** Requests for one answer in all; default 3. */
  readonly maxAttempts?: number;
  /** How the student learns the answers. */
  readonly sft?: SftOptions;
}

export interface DistillSamplesResult {
  /** All answers, with their rewards; failed requests are the exceptions of their group. A prompt without an answer has no group. */
  readonly groups: readonly TrajectoryGroup[];
  /** Answers that were learned, were not good enough, were cut at their length limit, and never came. */
  readonly learned: number;
  readonly rejected: number;
  readonly truncated: number;
  readonly failed: number;
  readonly train: TrainResult;
}

const OPTION_NAMES = [
  ...['teacher', 'prompts', 'samplesPerPrompt', 'request', 'reward', 'minReward', 'bestOnly', 'maxAttempts', 'sft'],
  ...['maxExceptions', 'maxConcurrency', 'timeoutMs'],
];

/**
 * Samples the teacher, keeps what is good enough, trains the student on it. Failed requests are tried again, then borne up to
 * `maxExceptions`. Answers that were cut at their length limit teach to stop anywhere: they are left out.
 * Throws RolloutError past `maxExceptions`, DataError if nothing is left to learn.
 */
export async function distillFromSamples(
  student: TrainableModel,
  options: DistillSamplesOptions,
  call: SftCallOptions = {},
): Promise<DistillSamplesResult> {
  refuseUnknownKeys('distillFromSamples', options, OPTION_NAMES);
  const { prompts, samplesPerPrompt = 1, minReward = Number.NEGATIVE_INFINITY, bestOnly = false } = options;
  requireIntegers('distillFromSamples', { samplesPerPrompt }, 1);
  const { maxExceptions, maxConcurrency, timeoutMs } = options;
  const limits = Object.entries({ maxExceptions, maxConcurrency, timeoutMs, signal: call.signal });
  const groups = await gatherTrajectoryGroups(
    prompts.map((prompt) =>
      trajectoryGroup(
        Array.from(
          { length: samplesPerPrompt },
          () =>
            ({ signal }: { readonly signal: AbortSignal }) =>
              ask(prompt, options, signal),
        ),
      ),
    ),
    { description: 'teacher', ...Object.fromEntries(limits.filter(([, value]) => value !== undefined)) },
  );
  const answers = groups.flatMap(({ trajectories }) => trajectories);
  const truncated = answers.filter(isTruncated).length;
  const learned = groups.flatMap((group) => {
    const good = group.trajectories.filter((one) => !isTruncated(one) && one.reward >= minReward);
    return bestOnly ? good.sort((a, b) => b.reward - a.reward).slice(0, 1) : good;
  });
  if (learned.length === 0) {
    throw new DataError(
      `distillFromSamples: needs at least one answer to learn, got ${answers.length} of which ${truncated} are cut and the others below ` +
        `minReward ${minReward}`,
    );
  }
  const train = await student.trainSft(learned, { trainOn: 'last', ...options.sft }, call);
  const rejected = answers.length - truncated - learned.length;
  const failed = prompts.length * samplesPerPrompt - answers.length;
  return { groups, learned: learned.length, rejected, truncated, failed, train };
}

async function ask(
  prompt: SamplePrompt,
  { teacher, request, reward, maxAttempts = 3 }: DistillSamplesOptions,
  signal: AbortSignal,
): Promise<Trajectory> {
  const { messages, tools = null } = prompt;
  const body = {
    ...request,
    model: teacher.getInferenceName(),
    messages,
    ...(tools !== null && tools.length > 0 && { tools }),
  } as unknown as Parameters<ReturnType<ChatModel['openaiClient']>['chat']['completions']['create']>[0];
  const send = retry(() => teacher.openaiClient().chat.completions.create(body, { signal, maxRetries: 0 }), {
    maxAttempts,
    signal,
  });
  const { choices } = (await send()) as ChatCompletion;
  const [choice] = choices;
  if (choice === undefined)
    throw new DataError(`distillFromSamples: teacher ${teacher.name} must answer, got no choice`);
  const trajectory = new Trajectory({ messagesAndChoices: [...messages, choice as ChatChoice], tools, reward: 0 });
  if (reward !== undefined) trajectory.reward = await reward(trajectory, prompt);
  return trajectory;
}

function isTruncated(trajectory: Trajectory): boolean {
  return trajectory.allChoices().at(-1)?.finish_reason === 'length';
}
