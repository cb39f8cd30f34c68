/** Whom RULER can ask: both protocols, providers by name, endpoints that take less. */
import { describe, expect, test } from 'vitest';
import { ConfigError, createJudge, JudgeError, JudgeHealth, ruler } from '../../src/index.ts';
import { goodAnswer, type ScriptedJudge, startScriptedJudge } from './scripted-judge.ts';

const truth = [0.9, 0.2, 0.5];
const lists = truth.map((score) => [{ role: 'user' as const, content: `say ${score}` }]);
const scoreOf = (text: string): number => Number(/say (0\.\d+)/.exec(text)?.[1]);
const wellBehaved = (): Promise<ScriptedJudge> => startScriptedJudge((call) => ({ text: goodAnswer(call, scoreOf) }));
const judgeAt = ({ baseURL }: ScriptedJudge) => createJudge({ model: 'judge', baseURL, apiKey: 'key' });
const scoresOf = (scores: readonly { readonly score: number }[]): number[] => scores.map(({ score }) => score);

describe('judges', () => {
  test("Anthropic's protocol gives the same scores", async () => {
    const server = await wellBehaved();
    const judgeModel = createJudge(
      { model: 'judge', baseURL: server.root, apiKey: 'key', protocol: 'messages' },
      { prices: { promptPerMillion: 10, completionPerMillion: 50, cachedPromptPerMillion: 1 } },
    );
    const health = new JudgeHealth();
    expect(scoresOf(await ruler(lists, { judgeModel, cache: false, health }))).toEqual([0.9, 0.2, 0.5]);
    expect(server.calls[0]?.body).toMatchObject({ tool_choice: { type: 'tool' }, temperature: 0, max_tokens: 4096 });
    // 600 fresh, 400 cached, 100 completion tokens.
    expect(health.report().cost).toBeCloseTo((600 * 10 + 400 * 1 + 100 * 50) / 1e6, 12);
    expect(health.metrics()).toMatchObject({
      'judge/calls': 1,
      'judge/prompt_tokens': 1000,
      'costs/train/judge/ruler': health.report().cost,
    });
  });

  test('are found by provider and name; a missing key is named', async () => {
    const server = await wellBehaved();
    const { OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_API_KEY } = process.env;
    try {
      process.env.OPENAI_BASE_URL = server.baseURL;
      process.env.OPENAI_API_KEY = 'key';
      delete process.env.ANTHROPIC_API_KEY;
      expect(scoresOf(await ruler(lists, { judgeModel: 'openai/gpt-x', cache: false }))).toEqual([0.9, 0.2, 0.5]);
      expect(server.calls[0]?.body.model).toBe('gpt-x');
      expect(() => createJudge('anthropic/claude-x')).toThrow(
        /^judgeModel anthropic\/claude-x: ANTHROPIC_API_KEY must hold/,
      );
      expect(() => createJudge('anthropic/claude-x')).toThrow(ConfigError);
      expect(() => createJudge('Qwen/Qwen3-32B')).toThrow(
        /provider of anthropic, art, .*model, baseURL and apiKey; got Qwen\/Qwen3-32B$/,
      );
    } finally {
      for (const [name, value] of Object.entries({ OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_API_KEY })) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
    }
  });

  test('that take no schema and no temperature are found out once', async () => {
    const server = await startScriptedJudge((call) => {
      if ('temperature' in call.body) return { status: 400, message: "Unsupported value: 'temperature'" };
      if ('max_tokens' in call.body) return { status: 400, message: "Use 'max_completion_tokens' instead" };
      if ('response_format' in call.body) return { status: 400, message: 'response_format is not supported' };
      return { text: `Here you are:\n\`\`\`json\n${goodAnswer(call, scoreOf)}\n\`\`\`\n` };
    });
    const judgeModel = judgeAt(server);
    for (let time = 0; time < 2; time++) {
      expect(scoresOf(await ruler(lists, { judgeModel, cache: false }))).toEqual([0.9, 0.2, 0.5]);
    }
    expect(server.calls).toHaveLength(5 + 1);
  });

  test('a key that is refused fails at once, and stands in no error', async () => {
    const server = await startScriptedJudge(() => ({ status: 401, message: 'wrong key sk-secret-1' }));
    const judgeModel = createJudge({ model: 'judge', baseURL: server.baseURL, apiKey: 'sk-secret-1' });
    const error = await ruler(lists, { judgeModel, cache: false }).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(JudgeError);
    expect(String(error)).toContain('wrong key [key]');
    expect(server.calls).toHaveLength(1);
  });

  test('a caller that gives up is not made to wait', async () => {
    const server = await startScriptedJudge(() => ({ hang: 'before' }));
    const signal = AbortSignal.timeout(100);
    await expect(ruler(lists, { judgeModel: judgeAt(server), cache: false, signal })).rejects.toMatchObject({
      code: 'aborted',
    });
  });
});
