/** A policy that plays one agent: it greets, calls the tool that it is shown, reads its result, and fills in schemas. */
export const weatherQuestion = 'How is the weather in Paris?';
export const weatherAnswer = 'It is sunny in Paris.';

const toolCall = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>';

export function weatherReply(prompt: string, hasSchema: boolean): string {
  if (hasSchema) return '{"city": "Paris", "degrees": 21}';
  const newest = prompt.slice(Math.max(prompt.lastIndexOf('<|im_start|>user'), prompt.lastIndexOf('<|im_start|>tool')));
  if (newest.includes('sunny in Paris')) return weatherAnswer;
  return newest.includes('weather in Paris') ? toolCall : 'Hello there.';
}
