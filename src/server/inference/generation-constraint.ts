/** What a request makes the engine sample: response format, required tools and strict arguments as one constraint. Layer 5. */
import type { TextConstraint } from '../../core/constraint.ts';
import type { GenerationRequest, ReplyFormat } from '../../core/generation.ts';
import type { ReasoningFormat } from '../../formats/reasoning-format.ts';
import { toolConstraint } from '../../formats/tool-formats/tool-constraint.ts';
import type { ToolFormat } from '../../formats/tool-formats/tool-format.ts';

export interface ReplyForms {
  readonly toolFormat: ToolFormat;
  readonly reasoning: ReasoningFormat | null;
  /** The prompt ended with the mark that begins reasoning. */
  readonly isReasoningOpen: boolean;
}

/** Null where any text will do. The policy may reason before what it must say. */
export function createConstraint(request: GenerationRequest, forms: ReplyForms): TextConstraint | null {
  const constraint = answerConstraint(request, forms.toolFormat);
  const { reasoning, isReasoningOpen } = forms;
  if (constraint === null || reasoning === null || request.prompt.type !== 'chat') return constraint;
  const thought: TextConstraint = {
    type: 'tag',
    begin: isReasoningOpen ? '' : reasoning.begin,
    content: { type: 'anyText' },
    end: reasoning.end,
  };
  const space: TextConstraint = { type: 'regex', pattern: '[ \\n]{0,4}' };
  const afterThought: TextConstraint = { type: 'sequence', parts: [thought, space, constraint] };
  return isReasoningOpen ? afterThought : { type: 'oneOf', options: [constraint, afterThought] };
}

/** Calls that are required, else what the format asks for, else calls as far as they are bound to anything. */
function answerConstraint(request: GenerationRequest, toolFormat: ToolFormat): TextConstraint | null {
  const { prompt, toolChoice, isParallelToolCalls: isParallel } = request;
  const answer = formatConstraint(request.format);
  const tools = prompt.type === 'chat' ? prompt.tools : [];
  if (tools.length === 0 || toolChoice === 'none') return answer;
  if (toolChoice !== 'auto') return toolConstraint(toolFormat, tools, toolChoice, isParallel);
  if (answer !== null) {
    // One call: alternatives must all end by themselves, and several calls do not.
    const call = toolConstraint(toolFormat, tools, 'required', false);
    const calls = call?.type === 'separatedTags' ? call.tags : call === null ? [] : [call];
    return { type: 'oneOf', options: [...calls, answer] };
  }
  // One call at most is a matter of form, even where arguments are free.
  const bound = isParallel ? tools : tools.map((tool) => (tool.isStrict ? tool : { ...tool, ...freeArguments }));
  return toolConstraint(toolFormat, bound, toolChoice, isParallel);
}

const freeArguments = { parameters: true, isStrict: true };

function formatConstraint(format: ReplyFormat): TextConstraint | null {
  switch (format.type) {
    case 'text':
      return null;
    case 'jsonObject':
      return { type: 'jsonSchema', schema: { type: 'object' } };
    case 'jsonSchema':
      return { type: 'jsonSchema', schema: format.schema };
    case 'regex':
      return { type: 'regex', pattern: format.pattern };
    case 'choice':
      return { type: 'oneOf', options: format.options.map((text) => ({ type: 'literal', text })) };
  }
}
