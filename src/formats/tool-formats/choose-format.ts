/**
 * Which form of tool calls a chat template means, by what it writes for a call. Layer 1.
 * Left out: forms that no parser here reads; their templates count as those without tools.
 */
import type { ToolFormat } from './tool-format.ts';

const probe = { tool: 'probe_tool', key: 'probe_key', value: 'probe_value' };

const tools = [
  {
    type: 'function',
    function: {
      name: probe.tool,
      description: 'd',
      parameters: { type: 'object', properties: { [probe.key]: { type: 'string', description: 'd' } } },
    },
  },
];

const messages = [
  { role: 'user', content: 'a' },
  {
    role: 'assistant',
    content: '',
    tool_calls: [
      {
        // Mistral's templates refuse other ids.
        id: 'abcdefghi',
        type: 'function',
        function: { name: probe.tool, arguments: { [probe.key]: probe.value } },
      },
    ],
  },
];

/** What a rendered call looks like, the most special first. */
const forms: readonly (readonly [ToolFormat, RegExp])[] = [
  ['smollm', /<tool_call>\s*\[\s*\{\s*"name":/],
  ['hermes', /<tool_call>\s*\{\s*"name":/],
  ['mistral', /\[TOOL_CALLS\]\s*\[\s*\{/],
  ['mistral_args', /\[TOOL_CALLS\]\s*probe_tool\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*\{/],
  ['pythonic', /\[\s*probe_tool\(probe_key=/],
  ['llama3_json', /\{\s*(?:"type":\s*"function",\s*)?"name":\s*"probe_tool",\s*"parameters":/],
];

/** Null if the template writes no calls, or in a form that no parser reads. */
export function chooseToolFormat(
  render: (options: {
    readonly messages: typeof messages;
    readonly tools: typeof tools;
    readonly addGenerationPrompt: boolean;
  }) => string,
): ToolFormat | null {
  try {
    const text = render({ messages, tools, addGenerationPrompt: false });
    // The system message may show an example of a call: the call is what has the value.
    const end = text.lastIndexOf(probe.value);
    const begin = text.lastIndexOf(probe.tool, end);
    if (end < 0 || begin < 0) return null;
    const call = text.slice(Math.max(0, begin - 64), end + probe.value.length);
    return forms.find(([, pattern]) => pattern.test(call))?.[0] ?? null;
  } catch {
    return null;
  }
}
