/** The application of `TestApi` on a port, a backend for it, and its model as the SDK holds it. */
import { onTestFinished } from 'vitest';
import { RemoteBackend, TrainableModel } from '../../src/index.ts';
import { startServer } from '../../src/server/listen.ts';
import type { ModelRegistryOptions } from '../../src/server/training/model-registry.ts';
import { TestApi } from './test-api.ts';

export interface RemoteApi {
  readonly api: TestApi;
  readonly backend: RemoteBackend;
  readonly model: TrainableModel;
  readonly url: string;
}

/** Closed after the test. */
export async function openRemoteApi(options: Partial<ModelRegistryOptions> = {}): Promise<RemoteApi> {
  const api = await TestApi.open(options);
  const server = await startServer(api.app);
  onTestFinished(async () => {
    await server.close();
    await api.close();
  });
  const backend = new RemoteBackend({ baseURL: server.url });
  const model = createModel(api, api.registration.name);
  await model.register(backend);
  return { api, backend, model, url: server.url };
}

/** A model on the same base model with the same adapter, not registered. */
export function createModel(api: TestApi, name: string, project: string = api.registration.project): TrainableModel {
  const { base_model: baseModel, lora, seed } = api.registration;
  return new TrainableModel({ name, project, baseModel, lora: { rank: lora.rank, alpha: lora.alpha }, seed });
}
