/** A policy that repeats what it hears, and an agent that talks to it and knows nothing of captures. */
import OpenAI from 'openai';
import { lastMessage, type ScriptedBackend, startScriptedBackend } from './scripted-backend.ts';

export interface RepeatingServer extends ScriptedBackend {
  /** Made before any capture: it keeps the `fetch` of that moment. */
  readonly client: OpenAI;
  /** Waits before each token of a stream, and before each whole reply. */
  delayMs: number;
  /** An agent of so many turns; returns what the policy said last. `fields`: more of each request. */
  readonly talk: (name: string, turns: number, client?: OpenAI, fields?: object) => Promise<string>;
  readonly rollouts: (state: string) => Promise<{ readonly id: string; readonly calls: number }[]>;
}

export async function startRepeatingServer(): Promise<RepeatingServer> {
  let delayMs = 0;
  const scripted = await startScriptedBackend((prompt) => `You said: ${lastMessage(prompt)}`, {
    delayMs: () => delayMs,
  });
  const own = new OpenAI({ baseURL: `${scripted.url}/v1`, apiKey: 'none', maxRetries: 0 });
  return {
    ...scripted,
    client: own,
    get delayMs() {
      return delayMs;
    },
    set delayMs(value) {
      delayMs = value;
    },
    talk: async (name, turns, client = own, fields = {}) => {
      const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'system', content: 'Repeat.' }];
      for (let turn = 0; turn < turns; turn++) {
        messages.push({ role: 'user', content: `${name} ${turn}` });
        const body = { model: 'agent', messages, ...fields };
        const { choices } = (await client.chat.completions.create(body)) as OpenAI.ChatCompletion;
        messages.push(choices[0]!.message);
      }
      return String(messages.at(-1)?.content);
    },
    rollouts: async (state) => {
      const answer = await fetch(`${scripted.url}/api/rollouts?state=${state}&limit=1000`);
      return ((await answer.json()) as { rollouts: { id: string; calls: number }[] }).rollouts;
    },
  };
}
