/**
 * An agent over the tools of an MCP server: the loop that one rollout is. Layer 5.
 * The policy calls tools until it answers without a call, or its turns are used up. What a tool says, its failures too, goes back to it.
 */
import { randomUUID } from 'node:crypto';
import type OpenAI from 'openai';
import { AbortedError, messageOf } from '../core/errors.ts';
import { isJsonObject } from '../core/json.ts';
import { refuseUnknownKeys, requireIntegers } from '../core/options.ts';
import { deriveSeed } from '../core/rng.ts';
import { type ChatChoice, Trajectory } from '../core/trajectory.ts';
import type { ChatModel } from '../sdk/model.ts';
import type { McpSession, McpTool, McpToolResult } from './mcp-session.ts';

export interface McpRolloutOptions {
  /** What the agent is to do. */
  readonly task: string;
  /** Default: do the task with the tools, then answer without a call. */
  readonly systemPrompt?: string;
  /** Replies of the policy; default 10. */
  readonly maxTurns?: number;
  /** Of one reply; default 1024. */
  readonly maxTokens?: number;
  /** Default 1, as training wants it. */
  readonly temperature?: number;
  /** Turn t is sampled with `deriveSeed(seed, t)`; default: the server draws seeds. */
  readonly seed?: number;
  /** Of the first reply; later ones are `auto`. Default `auto`. */
  readonly toolChoice?: 'auto' | 'required';
  /** Limit of one call; default 60 s. */
  readonly toolTimeoutMs?: number;
  /** Characters of a tool's answer that the policy sees; default 20,000. The rest is cut, and said to be. */
  readonly maxResultCharacters?: number;
  /** Policy step to use; default the newest. */
  readonly step?: number;
  readonly signal?: AbortSignal;
}

const optionNames = [
  'task',
  'systemPrompt',
  'maxTurns',
  'maxTokens',
  'temperature',
  'seed',
  'toolChoice',
  'toolTimeoutMs',
  'maxResultCharacters',
  'step',
  'signal',
];

const defaultSystemPrompt =
  'You work with the tools that you are given. Call them as often as the task needs. When it is done, answer with its result and without a call.';

/**
 * Runs the agent once. The trajectory has the tools, every turn, and the metrics `turns`, `tool_calls`, `tool_errors` and `has_answered`;
 * its reward is yours to set. Throws what the policy's server throws; tools that fail do not.
 */
export async function mcpRollout(
  model: ChatModel,
  session: McpSession,
  options: McpRolloutOptions,
): Promise<Trajectory> {
  refuseUnknownKeys('mcpRollout', options, optionNames);
  const { task, systemPrompt = defaultSystemPrompt, maxTurns = 10, step, signal } = options;
  requireIntegers('mcpRollout', { maxTurns }, 1);
  const tools = session.tools.map(toOpenAITool);
  const trajectory = new Trajectory({
    messagesAndChoices: [
      { role: 'system', content: systemPrompt },
      { role: 'user', content: task },
    ],
    tools,
  });
  const counts = { turns: 0, tool_calls: 0, tool_errors: 0, has_answered: false };
  // Rollouts of a group begin alike: the header tells the server whose turn it is.
  const request = { headers: { 'x-art-rollout': randomUUID() }, ...(signal !== undefined && { signal }) };
  for (let turn = 0; turn < maxTurns; turn++) {
    const body = createRequest(model.getInferenceName(step), trajectory, tools, turn, options);
    const completion = await model.openaiClient().chat.completions.create(body, request);
    const choice = completion.choices[0] as ChatChoice;
    trajectory.messagesAndChoices.push(choice);
    counts.turns++;
    const calls = (choice.message.tool_calls ?? []) as readonly OpenAI.ChatCompletionMessageFunctionToolCall[];
    if (calls.length === 0) {
      counts.has_answered = choice.finish_reason === 'stop'; // a reply that ran out of tokens is none
      break;
    }
    for (const call of calls) {
      const result = await runCall(session, call, options);
      counts.tool_calls++;
      if (result.isError) counts.tool_errors++;
      trajectory.messagesAndChoices.push({ role: 'tool', tool_call_id: call.id, content: result.text });
    }
  }
  Object.assign(trajectory.metrics, counts);
  return trajectory.finish();
}

function createRequest(
  name: string,
  trajectory: Trajectory,
  tools: OpenAI.ChatCompletionTool[],
  turn: number,
  { maxTokens = 1024, temperature = 1, seed, toolChoice = 'auto' }: McpRolloutOptions,
): OpenAI.ChatCompletionCreateParamsNonStreaming {
  return {
    model: name,
    messages: trajectory.messages() as unknown as OpenAI.ChatCompletionMessageParam[],
    max_tokens: maxTokens,
    temperature,
    ...(tools.length > 0 && { tools, tool_choice: turn === 0 ? toolChoice : 'auto' }),
    ...(seed !== undefined && { seed: deriveSeed(seed, turn) }),
  };
}

/** What the policy is told of its call. Only an abort by the caller throws. */
async function runCall(
  session: McpSession,
  call: OpenAI.ChatCompletionMessageFunctionToolCall,
  { toolTimeoutMs = 60_000, maxResultCharacters = 20_000, signal }: McpRolloutOptions,
): Promise<McpToolResult> {
  const { name, arguments: text } = call.function;
  const failed = (reason: string): McpToolResult => ({ text: `Error: ${reason}`, isError: true });
  if (!session.tools.some((tool) => tool.name === name)) {
    return failed(`there is no tool ${name}; there are ${session.tools.map((tool) => tool.name).join(', ')}`);
  }
  const args = parseArguments(text);
  if (args === null) return failed(`arguments of ${name} must be a JSON object, got ${text.slice(0, 200)}`);
  try {
    const result = await session.callTool(name, args, { timeoutMs: toolTimeoutMs, signal });
    if (result.text.length <= maxResultCharacters) return result;
    const cut = result.text.length - maxResultCharacters;
    return { ...result, text: `${result.text.slice(0, maxResultCharacters)}\n[${cut} more characters]` };
  } catch (error) {
    if (signal?.aborted) throw new AbortedError(`mcpRollout: call of ${name}: aborted by the caller`, { cause: error });
    return failed(messageOf(error));
  }
}

function parseArguments(text: string): Readonly<Record<string, unknown>> | null {
  if (text.trim() === '') return {};
  try {
    const value: unknown = JSON.parse(text);
    return isJsonObject(value) ? value : null;
  } catch {
    return null;
  }
}

function toOpenAITool({ name, description, inputSchema }: McpTool): OpenAI.ChatCompletionFunctionTool {
  return {
    type: 'function',
    function: { name, ...(description !== null && { description }), parameters: { ...inputSchema } },
  };
}
