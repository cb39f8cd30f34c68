/** What a request makes the engine sample: its response format as a constraint. Layer 5. */
import type { TextConstraint } from '../core/constraint.ts';
import type { ReplyFormat } from '../core/generation.ts';

/** Null where any text will do. */
export function formatConstraint(format: ReplyFormat): TextConstraint | null {
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
