/** What the programs of this folder share: the tool they offer, and what the policy of the test says about it. */
export const [root] = process.argv.slice(2);
/** The rollout form of the base URL: it says which calls belong together, to any client. */
export const baseURL = (rollout) => `${root}/rollouts/${rollout}/v1`;

export const question = 'How is the weather in Paris?';
export const answer = 'It is sunny in Paris.';
export const lookUp = (city) => `sunny in ${city}`;
export const weatherSchema = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
};
