/** Captures of agents that are not changed: all at once, twice each, and inside another capture. */
import assert from 'node:assert/strict';
import { answer, root } from './shared.mjs';

const sdk = await import(process.env.ART_SDK);
export const integration = (name) => import(new URL(`./integrations/${name}.js`, process.env.ART_SDK));

export const model = new sdk.TrainableModel({
  name: 'agent',
  project: 'clients',
  baseModel: process.env.ART_BASE_MODEL,
});
await model.register(new sdk.RemoteBackend({ baseURL: root }));
/** What clients are made with; they know nothing of captures. */
export const server = { baseURL: `${root}/v1`, apiKey: 'none' };

/** Two turns of one history, and the tool. */
function expectWeather(name, { trajectory, output }) {
  assert.equal(output, answer, name);
  const roles = trajectory.messages().map(({ role }) => role);
  assert.deepEqual(
    roles.filter((role) => role !== 'system'),
    ['user', 'assistant', 'tool', 'assistant'],
    name,
  );
  assert.deepEqual(
    trajectory.allChoices().map((choice) => choice.finish_reason),
    ['tool_calls', 'stop'],
    name,
  );
  assert.equal(trajectory.tools[0].function.name, 'weather', name);
  assert.deepEqual(trajectory.additionalHistories, [], name);
}

/** `agents`: by name, each asks for the weather and returns the answer. */
export async function captureAll(agents) {
  const names = [...Object.keys(agents), ...Object.keys(agents)];
  const outer = await sdk.captureTrajectory(
    async () => {
      const say = (content) =>
        model.openaiClient().chat.completions.create({ model: 'agent', messages: [{ role: 'user', content }] });
      await say('Hello');
      const inner = await Promise.all(names.map((name) => sdk.captureTrajectory(agents[name], { model })));
      await say('Hello again');
      return inner;
    },
    { model },
  );
  for (const [index, captured] of outer.output.entries()) expectWeather(names[index], captured);
  assert.equal(outer.trajectory.allChoices().length, 2);
  assert.equal(outer.trajectory.additionalHistories.length, 1);
  const { rollouts } = await (await fetch(`${root}/api/rollouts?state=open`)).json();
  assert.deepEqual(rollouts, []);
}
