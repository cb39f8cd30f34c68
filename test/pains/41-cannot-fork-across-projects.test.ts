/** Pains 41 and 43: no fork across owners; a run that went off the rails could only be begun anew. Here any step of any project is a start. */
import { expect, test } from 'vitest';
import { createModel, openRemoteApi } from '../server/remote-api.ts';

test('a run that went wrong after step 1 goes on from there in another project, beside the one that is kept', async () => {
  const { api, backend, model } = await openRemoteApi();
  for (const key of ['good', 'bad', 'worse']) await api.train(key);
  const rescued = createModel(api, 'rescued', 'another-project');
  await backend.fork(rescued, { fromModel: 'agent', fromProject: 'demo', notAfterStep: 1 });
  await rescued.register(backend);
  expect(await rescued.getStep()).toBe(1);
  expect(await model.getStep()).toBe(3);
  expect((await rescued.getCheckpoint()).provenance.forkedFrom).toMatchObject({
    project: 'demo',
    model: 'agent',
    step: 1,
  });
});
