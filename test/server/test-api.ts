/** A server's application over the counting engine, in a folder of its own, and calls whose answers are held to the route table. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createParser } from 'eventsource-parser';
import type { Hono } from 'hono';
import { expect } from 'vitest';
import { writeStarterModel } from '../../src/formats/starter-model.ts';
import { createArtApp, createModelRegistry, type ModelRegistry } from '../../src/server/index.ts';
import type { ModelRegistryOptions } from '../../src/server/training/model-registry.ts';
import { allRoutes } from '../../src/wire/all-routes.ts';
import { errorBody } from '../../src/wire/errors.ts';
import type { RegisterRequest, TrainRequest } from '../../src/wire/training.ts';
import { type CountingEngine, createCountingEngine } from './counting-engine.ts';
import { completion, group, trainRequest, trajectory } from './training-fixtures.ts';

export interface SentEvent {
  readonly id: string | undefined;
  readonly event: string | undefined;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into what was sent
  readonly data: any;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into what was sent
  readonly json: any;
}

export class TestApi {
  readonly root: string;
  readonly registration: RegisterRequest;
  readonly warnings: string[] = [];
  /** Operation ids whose answers were checked so far. */
  readonly checked: Set<string> = new Set();
  registry!: ModelRegistry;
  app!: Hono;
  engine!: CountingEngine;

  private constructor(root: string) {
    this.root = root;
    const base_model = join(root, 'base');
    this.registration = { name: 'agent', project: 'demo', base_model, lora: { rank: 4, alpha: 8 }, seed: 3 };
  }

  /** With the model `agent` registered. */
  static async open(options: Partial<ModelRegistryOptions> = {}): Promise<TestApi> {
    const api = new TestApi(await mkdtemp(join(tmpdir(), 'art-api-')));
    const sizes = { width: 16, layers: 1, heads: 2, kvHeads: 1, headSize: 8, ffWidth: 16 };
    await writeStarterModel({ seed: 1, directory: api.registration.base_model, corpus: ['go'], ...sizes });
    api.start(options);
    await api.registry.register(api.registration);
    return api;
  }

  start(options: Partial<ModelRegistryOptions> = {}): void {
    this.registry = createModelRegistry({
      root: join(this.root, '.art'),
      onWarning: (message) => this.warnings.push(message),
      createEngine: async ({ seed }) => {
        this.engine = createCountingEngine(seed);
        return this.engine;
      },
      ...options,
    });
    this.app = createArtApp(this.registry);
  }

  /** As a server that was stopped and started again does. */
  async restart(): Promise<void> {
    await this.registry.close();
    this.start();
    await this.registry.register(this.registration);
  }

  async close(): Promise<void> {
    await this.registry.close();
    await rm(this.root, { recursive: true });
  }

  request(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Response> {
    const sent = body === undefined ? {} : { body: JSON.stringify(body) };
    const type: Record<string, string> = body === undefined ? {} : { 'content-type': 'application/json' };
    return Promise.resolve(this.app.request(path, { method, headers: { ...type, ...headers }, ...sent }));
  }

  /** The answer as JSON, held to the row of the route table: no field that the schema lacks, none missing. */
  async call(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer> {
    const response = await this.request(method, path, body, headers);
    const json = await response.json();
    this.#check(method, path, response.status, json);
    return { status: response.status, headers: response.headers, json };
  }

  /** A call that needs a confirmation, confirmed. */
  async confirmed(method: string, path: string, body?: unknown): Promise<Answer> {
    const first = await this.call(method, path, body);
    expect(first.status).toBe(409);
    return this.call(method, path, body, { 'x-art-confirmation': first.json.confirmation_token });
  }

  /** Every event of a stream that ends, each held to the route table. */
  async stream(method: string, path: string, body?: unknown): Promise<SentEvent[]> {
    const response = await this.request(method, path, body);
    expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    return this.readEvents(response, method, path);
  }

  /** Reads events until the stream ends or `isLast` says so. */
  async readEvents(
    response: Response,
    method: string,
    path: string,
    isLast: (events: readonly SentEvent[]) => boolean = () => false,
  ): Promise<SentEvent[]> {
    const events: SentEvent[] = [];
    const parser = createParser({
      onEvent: ({ id, event, data }) => events.push({ id, event, data: JSON.parse(data) }),
    });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      parser.feed(value);
      if (isLast(events)) {
        await reader.cancel();
        break;
      }
    }
    const [name, spec] = routeOf(method, path);
    this.checked.add(name);
    for (const { event = 'message', data } of events) {
      const schema = spec.responses[200]?.events?.[event];
      if (schema === undefined) throw new Error(`${name}: event ${event} must be in the route table`);
      expect(schema.parse(data)).toEqual(data);
    }
    return events;
  }

  /** A `train` request whose turns the model holds, sampled at its step. */
  trainRequest(key: string, rewards: readonly number[] = [1, 0]): TrainRequest {
    const { completions, step } = this.registry.get('agent').model;
    const ids = rewards.map((_, index) => `${key}-${index}`);
    for (const id of ids) completions.put(completion(id, { policyStep: step() }));
    return trainRequest(key, group(...rewards.map((reward, index) => trajectory(reward, [ids[index]!]))));
  }

  /** Trains one step; the result. */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into what was sent
  async train(key: string): Promise<any> {
    const events = await this.stream('POST', '/api/models/agent/train', this.trainRequest(key));
    expect(events.at(-1)?.event).toBe('result');
    return events.at(-1)?.data;
  }

  #check(method: string, path: string, status: number, json: unknown): void {
    const [name, spec] = routeOf(method, path);
    const schema = spec.responses[status]?.schema;
    if (status < 400) this.checked.add(name);
    if (schema !== undefined) expect(schema.parse(json)).toEqual(json);
    else errorBody.parse(json);
  }
}

function routeOf(method: string, path: string) {
  const plain = path.split('?')[0] as string;
  const found = Object.entries(allRoutes).find(([, spec]) => {
    const pattern = new RegExp(`^${spec.path.replace(/\{\w+\}/g, '[^/]+').replaceAll('.', '\\.')}$`);
    return spec.method.toUpperCase() === method && pattern.test(plain);
  });
  if (found === undefined) throw new Error(`${method} ${path}: must be in the route table`);
  return found;
}
