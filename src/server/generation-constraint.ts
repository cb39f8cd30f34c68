/** What a request makes the engine sample: response format, required tools and strict arguments as one constraint. Layer 5. */
import type { TextConstraint } from '../core/constraint.ts';
import type { GenerationRequest, ReplyFormat } from '../core/generation.ts';
import type { ReasoningFormat } from '../formats/reasoning-format.ts';
import type { ToolFormat } from '../formats/tool-formats/tool-format.ts';

export interface ReplyForms {
  readonly toolFormat: ToolFormat;
  readonly reasoning: ReasoningFormat | null;
  /** The prompt ended with the mark that begins reasoning. */
  readonly isReasoningOpen: boolean;
}

/** Null where any text will do. The policy may reason before what it must say. */
export function createConstraint(request: GenerationRequest, forms: ReplyForms): TextConstraint | null {
  const constraint = formatConstraint(request.format);
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
