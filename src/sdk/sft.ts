/**
 * Supervised fine-tuning as users write it: options, and conversations or trajectories as examples. Layer 5.
 * Checked here as the server checks them, so that a mistake is found before anything is sent.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { defaultSftConfig, type SftConfig } from '../core/sft-config.ts';
import type { AdamOptions } from '../core/train-config.ts';
import { type ChatChoice, type ChatMessage, type History, isChoice, Trajectory } from '../core/trajectory.ts';
import { describeIssue } from '../wire/errors.ts';
import { type SftRequest, sftConversation, sftOptions } from '../wire/sft.ts';
import type { TrainResult as WireTrainResult } from '../wire/training.ts';
import { toCamelCaseField, toSnakeCase } from '../wire/training-names.ts';
import { type Api, modelPath } from './call.ts';
import { callTrainingJob, type TrainCallOptions } from './training-calls.ts';

/** A conversation to learn from: OpenAI's messages, and the tools that the assistant had. */
export interface SftConversation {
  readonly messages: readonly ChatMessage[];
  /** OpenAI's definitions. */
  readonly tools?: readonly object[] | null;
}

/** A trajectory counts as its conversations, whoever sampled them: each history is one. */
export type SftExample = SftConversation | Trajectory;

/** Options of one `trainSft` call; what is left out takes the value of `defaultSftConfig`. */
export type SftOptions = Partial<Omit<SftConfig, 'adam'>> & { readonly adam?: Partial<AdamOptions> };

export interface SftCallOptions extends TrainCallOptions {
  /** Calls with one key train once, also after a crash: the second gets the first one's result. Default: a new one. */
  readonly idempotencyKey?: string | undefined;
}

type WireConversation = SftRequest['conversations'][number];

/** Checks the options and puts them in wire form. Throws ConfigError with the name and the rule. */
export function encodeSftOptions(options: SftOptions, what = 'trainSft options'): SftRequest['options'] {
  refuseUnknownKeys(what, options, Object.keys(defaultSftConfig));
  refuseUnknownKeys(`${what}.adam`, options.adam ?? {}, Object.keys(defaultSftConfig.adam));
  const { adam, templateVariables, ...rest } = options;
  const wire = {
    ...toSnakeCase(rest),
    ...(adam !== undefined && { adam: toSnakeCase(adam) }),
    ...(templateVariables !== undefined && { chat_template_kwargs: templateVariables }),
  };
  const parsed = sftOptions.safeParse(wire);
  if (parsed.success) return parsed.data;
  const { message } = describeIssue(parsed.error.issues[0], wire);
  throw new ConfigError(`${what}.${toCamelCaseField(message)}`);
}

/** Examples in wire form. Throws DataError that names the example. */
export function encodeSftExamples(examples: readonly SftExample[]): WireConversation[] {
  if (examples.length === 0) throw new DataError('trainSft: needs at least one conversation, got none');
  return examples.flatMap((example, index) => {
    const where = `trainSft: example ${index}`;
    if (example instanceof Trajectory) return encodeTrajectory(example, where);
    return [checkConversation(example, where)];
  });
}

/** Throws DataError, with `where`, unless it is a conversation of texts in OpenAI's shape. */
export function checkConversation(value: unknown, where: string): WireConversation {
  const given = typeof value === 'object' && value !== null && 'tools' in value ? dropNullTools(value) : value;
  const parsed = sftConversation.safeParse(given);
  if (parsed.success) return parsed.data;
  throw new DataError(`${where}: ${describeIssue(parsed.error.issues[0], given).message}`);
}

function dropNullTools({ tools, ...rest }: { readonly tools: unknown }): object {
  return tools === null ? rest : { ...rest, tools };
}

function encodeTrajectory(trajectory: Trajectory, where: string): WireConversation[] {
  const histories = [trajectory, ...trajectory.additionalHistories].filter(({ messagesAndChoices }) =>
    messagesAndChoices.some((entry) => isChoice(entry) || entry.role === 'assistant'),
  );
  if (histories.length === 0) throw new DataError(`${where}: must hold an assistant message or choice, got none`);
  return histories.map((history) => checkConversation(toConversation(history, where), where));
}

/** The messages of a history with what is learned or shown alone: clients and servers add fields of their own. */
function toConversation({ messagesAndChoices, tools }: History, where: string): SftConversation {
  const messages = messagesAndChoices.map((entry) => {
    const { role, content, name, tool_call_id, tool_calls, refusal, ...more }: ChatMessage = isChoice(entry)
      ? toMessage(entry)
      : entry;
    if (refusal) throw new DataError(`${where}: must hold no refusal, got ${JSON.stringify(refusal).slice(0, 100)}`);
    const reasoning_content = more.reasoning_content ?? more.reasoning;
    const calls = Array.isArray(tool_calls) && tool_calls.length > 0 ? tool_calls.map(toToolCall) : undefined;
    const all = { role, content, name, tool_call_id, tool_calls: calls, reasoning_content };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value != null)) as unknown as ChatMessage;
  });
  return { messages, tools };
}

function toMessage({ message }: ChatChoice): ChatMessage {
  return message as ChatMessage;
}

function toToolCall(call: unknown): unknown {
  if (typeof call !== 'object' || call === null || !('function' in call)) return call; // the schema says what is wrong
  const { id, type, function: called } = call as { id?: unknown; type?: unknown; function: unknown };
  return { ...(id !== undefined && { id }), ...(type !== undefined && { type }), function: called };
}

export function callSft(
  api: Api,
  name: string,
  request: SftRequest,
  options: TrainCallOptions,
): Promise<WireTrainResult> {
  const job = { what: `fine-tuning of model ${name}`, path: `${modelPath(name)}/sft`, body: request };
  return callTrainingJob(api, job, options);
}
