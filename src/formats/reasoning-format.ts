/** Marks between which a policy thinks before it answers. Layer 1. Source: chat templates of Qwen3, DeepSeek-R1 and Magistral. */

export interface ReasoningFormat {
  readonly begin: string;
  readonly end: string;
}

const formats: readonly ReasoningFormat[] = [
  { begin: '<think>', end: '</think>' },
  { begin: '[THINK]', end: '[/THINK]' },
];

/** What a chat template writes or reads; null if it knows no reasoning. */
export function chooseReasoningFormat(templateSource: string): ReasoningFormat | null {
  return formats.find(({ end }) => templateSource.includes(end)) ?? null;
}

/** Whether a prompt ends with the mark that begins reasoning, so that the reply is reasoning from its first character. */
export function isReasoningOpen(prompt: string, format: ReasoningFormat): boolean {
  return prompt.trimEnd().endsWith(format.begin);
}
