/**
 * `/openapi.json`, version 3.1, from the route tables. Layer 5. Source: OpenAPI Specification 3.1.1; schemas are JSON Schema 2020-12, as
 * zod writes them. Events of a stream stand in `x-art-events`, since OpenAPI 3.1 has no place for them; the scope in `x-art-scope`.
 */
import * as z from 'zod';
import { allRoutes } from '../../wire/all-routes.ts';
import { confirmationNeeded } from '../../wire/checkpoints.ts';
import { errorBody } from '../../wire/errors.ts';
import type { RouteResponse, RouteSpec } from '../../wire/route.ts';
import { schemaNames } from '../../wire/schema-names.ts';

type Json = Record<string, unknown>;

export interface OpenApiDocument extends Json {
  readonly openapi: '3.1.1';
  readonly info: { readonly title: string; readonly version: string };
  readonly tags: readonly { readonly name: string }[];
  readonly paths: Readonly<Record<string, Readonly<Record<string, OpenApiOperation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Json>> } & Json;
}

export interface OpenApiOperation extends Json {
  readonly operationId: string;
  readonly summary: string;
  readonly tags: readonly string[];
  readonly 'x-art-scope': string;
}

/** Statuses that every route may answer with. */
const commonErrors = [400, 401, 403, 429, 500, 503];

const errorTexts: Readonly<Record<number, string>> = {
  400: 'The request breaks a rule; the message says which.',
  401: 'The server wants a key.',
  403: 'The key lacks the scope, or a web page of another origin asks.',
  404: 'There is no such thing.',
  409: 'It is in a state that does not allow this.',
  429: 'A queue is full, or a limit of the key is reached; retry-after says when to come back.',
  500: 'The server failed; its log has the reason.',
  503: 'The engine is not there at the moment; the same request may succeed later.',
};

/** The whole document; `version` is the package's. */
export function openApiDocument(version: string): OpenApiDocument {
  const schemas = new SchemaBook();
  const paths: Record<string, Record<string, OpenApiOperation>> = {};
  for (const [name, spec] of Object.entries(allRoutes)) {
    paths[spec.path] = { ...paths[spec.path], [spec.method]: describeRoute(name, spec, schemas) };
  }
  const errorRef = schemas.reference(errorBody, 'Error', 'output');
  return {
    openapi: '3.1.1',
    info: {
      title: 'Agent Reinforcement Trainer',
      version,
      description: 'Serve a policy to any agent, and train it by what the agents did.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    } as OpenApiDocument['info'],
    servers: [{ url: '/' }],
    tags: [...new Set(Object.values(allRoutes).map((spec) => spec.tag))].map((name) => ({ name })),
    security: [{ bearer: [] }, { apiKey: [] }],
    paths,
    components: {
      securitySchemes: {
        bearer: {
          type: 'http',
          scheme: 'bearer',
          description: 'A key of `art keys create`; not needed where the server has none.',
        },
        apiKey: { type: 'apiKey', in: 'header', name: 'x-api-key' },
      },
      responses: {
        Error: { description: 'OpenAI error body.', content: { 'application/json': { schema: errorRef } } },
      },
      schemas: schemas.definitions(),
    },
  };
}

function describeRoute(name: string, spec: RouteSpec, schemas: SchemaBook): OpenApiOperation {
  const parameters = [...pathParameters(spec.path), ...queryParameters(spec), ...headerParameters(name, spec)];
  const title = name.charAt(0).toUpperCase() + name.slice(1);
  return {
    operationId: name,
    tags: [spec.tag],
    summary: spec.summary,
    ...(spec.details !== undefined && { description: spec.details }),
    'x-art-scope': spec.scope,
    ...(spec.scope === 'open' && { security: [] }),
    ...(parameters.length > 0 && { parameters }),
    ...(spec.body !== undefined && {
      requestBody: {
        required: true,
        content: { 'application/json': { schema: schemas.reference(spec.body, `${title}Request`, 'input') } },
      },
    }),
    responses: {
      ...Object.fromEntries(
        Object.entries(spec.responses).map(([status, response]) => [
          status,
          describeResponse(response, title, schemas),
        ]),
      ),
      ...describeErrors(spec, schemas),
    },
  };
}

function describeResponse(response: RouteResponse, title: string, schemas: SchemaBook): Json {
  const { description, schema, events, contentType = 'application/json' } = response;
  const content: Record<string, Json> = {};
  if (schema !== undefined) content[contentType] = { schema: schemas.reference(schema, `${title}Response`, 'output') };
  else if (events === undefined) content[contentType] = {};
  if (events !== undefined) {
    const named = Object.entries(events).map(([event, data]) => {
      const eventTitle = event.replace(/(^|[._])([a-z])/g, (_match, _dot, letter: string) => letter.toUpperCase());
      return [event, schemas.reference(data, `${eventTitle}Event`, 'output')];
    });
    content['text/event-stream'] = { schema: { type: 'string' }, 'x-art-events': Object.fromEntries(named) };
  }
  return { description, content };
}

function describeErrors(spec: RouteSpec, schemas: SchemaBook): Json {
  const statuses = [...new Set([...commonErrors, ...(spec.errors ?? [])])].sort((a, b) => a - b);
  const errors: Json = {};
  for (const status of statuses) {
    if (status in spec.responses) continue;
    errors[status] = {
      description: errorTexts[status] ?? 'Refused.',
      content: { 'application/json': { schema: schemas.reference(errorBody, 'Error', 'output') } },
    };
  }
  if (spec.isConfirmed) {
    errors[409] = {
      description:
        'Not confirmed yet: send the call again with confirmation_token, which is good once and for two minutes.',
      content: {
        'application/json': { schema: schemas.reference(confirmationNeeded, 'ConfirmationNeeded', 'output') },
      },
    };
  }
  return errors;
}

function pathParameters(path: string): Json[] {
  return [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: name === 'step' ? { type: 'integer', minimum: 0 } : { type: 'string' },
  }));
}

function queryParameters({ query }: RouteSpec): Json[] {
  if (query === undefined) return [];
  const { properties = {}, required = [] } = convert(z.toJSONSchema(query, { io: 'output', override })) as {
    properties?: Record<string, Json>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, schema]) => ({
    name,
    in: 'query',
    required: required.includes(name),
    schema,
  }));
}

function headerParameters(name: string, spec: RouteSpec): Json[] {
  const header = (headerName: string, description: string): Json => ({
    name: headerName,
    in: 'header',
    required: false,
    description,
    schema: { type: 'string' },
  });
  return [
    ...(spec.isConfirmed ? [header('x-art-confirmation', 'The confirmation_token of the first answer.')] : []),
    ...(name === 'events' ? [header('Last-Event-ID', 'The last event that the reader has.')] : []),
    ...(spec.tag === 'Inference' ? [header('x-art-rollout', 'The rollout that the call belongs to.')] : []),
  ];
}

/** Schemas by name: each stands once in the document, and is referred to. */
class SchemaBook {
  readonly #registry = z.registry<{ id: string }>();
  readonly #directions: Map<string, 'input' | 'output'> = new Map();

  /** `fallback` names a schema that has no name of its own. */
  reference(schema: z.ZodType, fallback: string, io: 'input' | 'output'): Json {
    const known = this.#registry.get(schema);
    const id = known?.id ?? schemaNames.get(schema) ?? fallback;
    if (known === undefined) {
      if (this.#directions.has(id)) throw new Error(`openapi: two schemas have the name ${id}`);
      this.#registry.add(schema, { id });
      this.#directions.set(id, io);
    }
    return { $ref: `#/components/schemas/${id}` };
  }

  definitions(): Record<string, Json> {
    const options = { uri: (id: string) => `#/components/schemas/${id}`, unrepresentable: 'any', override } as const;
    const inputs = z.toJSONSchema(this.#registry, { ...options, io: 'input' }).schemas;
    const outputs = z.toJSONSchema(this.#registry, { ...options, io: 'output' }).schemas;
    const ids = [...this.#directions.keys()].sort();
    return Object.fromEntries(
      ids.map((id) => [id, convert((this.#directions.get(id) === 'input' ? inputs : outputs)[id] as Json)]),
    );
  }
}

/** Bounds of whole numbers that only say that they are whole numbers of JavaScript. */
function override({ jsonSchema }: { jsonSchema: z.core.JSONSchema.BaseSchema }): void {
  if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
  if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
}

/** Without what belongs to a document of its own. */
function convert({ $schema: _schema, $id: _id, ...schema }: Json): Json {
  return schema;
}
