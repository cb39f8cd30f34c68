/**
 * `/docs`: the OpenAPI document as one page of HTML, without a script and without anything from elsewhere. Layer 5.
 * Its content security policy allows its own style and nothing else.
 */
import { createHash } from 'node:crypto';
import type { OpenApiDocument, OpenApiOperation } from './openapi.ts';

type Json = Readonly<Record<string, unknown>>;

export interface DocsPage {
  readonly html: string;
  /** In base64, for the policy. */
  readonly styleSha256: string;
}

const style = `
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#1a1a1a;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #ccc}
h3{margin:0;font-size:1rem;font-weight:600}
code,pre{font:13px/1.5 ui-monospace,monospace}
pre{background:#f4f4f4;padding:.75rem;overflow:auto;margin:.5rem 0}
details{border:1px solid #ddd;border-radius:6px;margin:.5rem 0;padding:.5rem .75rem}
summary{cursor:pointer}
table{border-collapse:collapse;margin:.5rem 0}
td,th{border:1px solid #ddd;padding:.25rem .5rem;text-align:left;vertical-align:top}
.method{display:inline-block;min-width:4rem;font-weight:700;text-transform:uppercase}
.scope{float:right;color:#555}
nav a{margin-right:1rem}
@media (prefers-color-scheme:dark){body{background:#151515;color:#e6e6e6}pre{background:#222}details,td,th{border-color:#444}.scope{color:#aaa}a{color:#8ab4f8}}
`;

/** Value of `content-security-policy` for the page. */
export function docsPolicy(styleSha256: string): string {
  return `default-src 'none'; style-src 'sha256-${styleSha256}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;
}

/** The page of a document. */
export function renderDocs(document: OpenApiDocument): DocsPage {
  const sections = document.tags.map(({ name }) => renderTag(document, name));
  const links = document.tags.map(({ name }) => `<a href="#${anchor(name)}">${escapeHtml(name)}</a>`);
  const schemas = Object.entries(document.components.schemas).map(([name, schema]) => renderSchema(name, schema));
  const { title, version } = document.info;
  const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} API</title>
<style>${style}</style>
</head>
<body>
<h1>${escapeHtml(title)} API</h1>
<p>Version ${escapeHtml(version)}. The same as a document for programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI ${escapeHtml(document.openapi)}).
Errors have OpenAI's shape. On a server with keys, each route needs one with the scope that stands beside it, as <code>Authorization: Bearer</code> or <code>x-api-key</code>.</p>
<nav>${links.join('\n')}\n<a href="#schemas">Schemas</a></nav>
${sections.join('\n')}
<h2 id="schemas">Schemas</h2>
${schemas.join('\n')}
</body>
</html>
`;
  return { html, styleSha256: createHash('sha256').update(style).digest('base64') };
}

function renderTag(document: OpenApiDocument, tag: string): string {
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => operation.tags.includes(tag))
      .map(([method, operation]) => renderOperation(path, method, operation)),
  );
  return `<h2 id="${anchor(tag)}">${escapeHtml(tag)}</h2>\n${operations.join('\n')}`;
}

function renderOperation(path: string, method: string, operation: OpenApiOperation): string {
  const { operationId, summary, description, parameters, requestBody, responses } = operation;
  return `<details id="${escapeHtml(operationId)}">
<summary><span class="scope">${escapeHtml(operation['x-art-scope'])}</span><span class="method">${escapeHtml(method)}</span> <code>${escapeHtml(path)}</code><br>${escapeHtml(summary)}</summary>
${typeof description === 'string' ? `<p>${escapeHtml(description)}</p>` : ''}
${renderParameters((parameters ?? []) as readonly Json[])}
${requestBody === undefined ? '' : `<h3>Body</h3>${renderContent(requestBody as Json)}`}
<h3>Answers</h3>
<table><tr><th>Status</th><th>Meaning</th><th>Content</th></tr>
${Object.entries(responses as Record<string, Json>)
  .map(renderResponse)
  .join('\n')}
</table>
</details>`;
}

function renderParameters(parameters: readonly Json[]): string {
  if (parameters.length === 0) return '';
  const rows = parameters.map(
    ({ name, in: place, required, schema, description }) =>
      `<tr><td><code>${escapeHtml(String(name))}</code></td><td>${escapeHtml(String(place))}${required === true ? ', required' : ''}</td>` +
      `<td><code>${escapeHtml(shortSchema(schema as Json))}</code> ${escapeHtml(String(description ?? ''))}</td></tr>`,
  );
  return `<h3>Parameters</h3><table>${rows.join('\n')}</table>`;
}

function renderResponse([status, response]: [string, Json]): string {
  return `<tr><td>${escapeHtml(status)}</td><td>${escapeHtml(String(response.description))}</td><td>${renderContent(response)}</td></tr>`;
}

function renderContent({ content = {} }: Json): string {
  return Object.entries(content as Record<string, Json>)
    .map(([type, { schema, 'x-art-events': events }]) => {
      const shown =
        events === undefined
          ? renderReference(schema as Json | undefined)
          : renderEvents(events as Record<string, Json>);
      return `<code>${escapeHtml(type)}</code> ${shown}`;
    })
    .join('<br>');
}

function renderEvents(events: Readonly<Record<string, Json>>): string {
  return `events: ${Object.entries(events)
    .map(([name, schema]) => `<code>${escapeHtml(name)}</code> ${renderReference(schema)}`)
    .join(', ')}`;
}

function renderReference(schema: Json | undefined): string {
  const name = typeof schema?.$ref === 'string' ? schema.$ref.split('/').at(-1) : undefined;
  return name === undefined ? '' : `<a href="#schema-${anchor(name)}">${escapeHtml(name)}</a>`;
}

function renderSchema(name: string, schema: Json): string {
  return `<details id="schema-${anchor(name)}"><summary><code>${escapeHtml(name)}</code></summary><pre>${escapeHtml(JSON.stringify(schema, null, 2))}</pre></details>`;
}

function shortSchema(schema: Json): string {
  const { type, enum: values, minimum, maximum } = schema;
  if (Array.isArray(values)) return values.map(String).join(' | ');
  const range = [minimum, maximum].some((bound) => bound !== undefined) ? ` ${minimum ?? ''}…${maximum ?? ''}` : '';
  return `${Array.isArray(type) ? type.join(' | ') : String(type ?? 'any')}${range}`;
}

function anchor(name: string): string {
  return name.replace(/[^A-Za-z0-9]+/g, '-');
}

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
