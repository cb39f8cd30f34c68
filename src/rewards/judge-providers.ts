/** Where the common providers of judges are, and the variables that hold their keys. Layer 5. Source: each provider's API reference. */
import { ConfigError } from '../core/errors.ts';

export type JudgeProtocol = 'chat-completions' | 'messages';

export interface JudgeEndpoint {
  /** Root of the API: with `/v1` for chat completions, without for Anthropic's messages. */
  readonly baseURL: string;
  readonly apiKey: string;
  readonly protocol: JudgeProtocol;
}

interface Provider {
  readonly baseURL: string;
  /** A variable that holds another address. */
  readonly baseVariable?: string;
  /** Variables that may hold the key, the first one that is set counts; none: the provider has no keys. */
  readonly keyVariables: readonly string[];
  /** Key where no variable is set; without it, a variable must be. */
  readonly defaultKey?: string;
  readonly protocol?: JudgeProtocol;
}

const providers: Readonly<Record<string, Provider>> = {
  anthropic: {
    baseURL: 'https://api.anthropic.com',
    baseVariable: 'ANTHROPIC_BASE_URL',
    keyVariables: ['ANTHROPIC_API_KEY'],
    protocol: 'messages',
  },
  art: {
    baseURL: 'http://127.0.0.1:8000',
    baseVariable: 'ART_URL',
    keyVariables: ['ART_API_KEY'],
    defaultKey: 'art-local',
  },
  cerebras: { baseURL: 'https://api.cerebras.ai/v1', keyVariables: ['CEREBRAS_API_KEY'] },
  deepseek: { baseURL: 'https://api.deepseek.com/v1', keyVariables: ['DEEPSEEK_API_KEY'] },
  fireworks: { baseURL: 'https://api.fireworks.ai/inference/v1', keyVariables: ['FIREWORKS_API_KEY'] },
  gemini: {
    baseURL: 'https://generativelanguage.googleapis.com/v1beta/openai',
    keyVariables: ['GEMINI_API_KEY', 'GOOGLE_API_KEY'],
  },
  groq: { baseURL: 'https://api.groq.com/openai/v1', keyVariables: ['GROQ_API_KEY'] },
  mistral: { baseURL: 'https://api.mistral.ai/v1', keyVariables: ['MISTRAL_API_KEY'] },
  ollama: {
    baseURL: 'http://127.0.0.1:11434/v1',
    baseVariable: 'OLLAMA_BASE_URL',
    keyVariables: [],
    defaultKey: 'ollama',
  },
  openai: {
    baseURL: 'https://api.openai.com/v1',
    baseVariable: 'OPENAI_BASE_URL',
    keyVariables: ['OPENAI_API_KEY'],
  },
  openrouter: { baseURL: 'https://openrouter.ai/api/v1', keyVariables: ['OPENROUTER_API_KEY'] },
  together: { baseURL: 'https://api.together.xyz/v1', keyVariables: ['TOGETHER_API_KEY'] },
  wandb: { baseURL: 'https://api.inference.wandb.ai/v1', keyVariables: ['WANDB_API_KEY'] },
  xai: { baseURL: 'https://api.x.ai/v1', keyVariables: ['XAI_API_KEY'] },
};

/** Endpoint and model of `provider/model`. Throws ConfigError for an unknown provider, or naming the variable of a key that is missing. */
export function findProvider(judge: string): { readonly endpoint: JudgeEndpoint; readonly model: string } {
  const slash = judge.indexOf('/');
  const name = judge.slice(0, Math.max(0, slash));
  const model = judge.slice(slash + 1);
  const provider = Object.hasOwn(providers, name) ? providers[name] : undefined;
  if (provider === undefined || model === '') {
    throw new ConfigError(
      `judgeModel: must be provider/model with a provider of ${Object.keys(providers).join(', ')}, or an object with model, baseURL and apiKey; got ${judge}`,
    );
  }
  const { keyVariables, defaultKey, baseVariable, protocol = 'chat-completions' } = provider;
  const apiKey = keyVariables.map((variable) => process.env[variable]).find((key) => key) ?? defaultKey;
  if (apiKey === undefined) {
    throw new ConfigError(
      `judgeModel ${judge}: ${keyVariables.join(' or ')} must hold the key of ${name}, got nothing`,
    );
  }
  const own = baseVariable === undefined ? undefined : process.env[baseVariable];
  const baseURL = (own || provider.baseURL).replace(/\/+$/, '');
  // The root of our server has no `/v1`, as in the environment of its other programs.
  return { endpoint: { baseURL: name === 'art' ? `${baseURL}/v1` : baseURL, apiKey, protocol }, model };
}
