/** Templates that were made to do harm end with a typed error within about a second, and reach nothing outside. */
import { expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { compileJinja } from './jinja.ts';

const twice = (count: number, start: string, step: string, end: string): string =>
  `{% set n = namespace(a=${start}) %}{% for i in range(${count}) %}{% set n.a = ${step} %}{% endfor %}${end}`;

const hostile: Readonly<Record<string, string>> = {
  'nested loops':
    '{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}',
  'loops that write':
    '{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}',
  'many ranges': '{% for a in range(99999) %}{% set b = range(99999) %}{% endfor %}',
  'a range that is too large': '{{ range(10 ** 15) }}',
  'text that doubles by ~': twice(60, "'x'", 'n.a ~ n.a', '{{ n.a }}'),
  'text that doubles by +': twice(60, "'x'", 'n.a + n.a', '{{ n.a | upper }}'),
  'text that doubles by join': twice(60, "'x'", '[n.a, n.a] | join', '{{ n.a }}'),
  'text that doubles by replace': twice(60, "'xx'", "n.a.replace('x', n.a)", '{{ n.a }}'),
  'text that doubles by blocks': `{% set a = 'xxxxxxxx' %}${'{% set a %}{{ a }}{{ a }}{% endset %}'.repeat(60)}{{ a }}`,
  'text that is repeated': "{{ 'x' * 10 ** 15 }}",
  'text that is indented': "{{ ('\\n' * 10000) | indent(10 ** 6, true, true) }}",
  'JSON that is indented': '{{ [[[[[[1]]]]]] | tojson(indent=10 ** 9) }}',
  'lists that double': twice(60, '[0]', 'n.a + n.a', '{{ n.a | length }}'),
  'lists that are repeated': '{{ [0] * 10 ** 15 }}',
  'empty lists that are repeated':
    '{{ ([] * 10 ** 15) | length }}{% for a in range(99999) %}{{ range(99999) | list }}{% endfor %}',
  'a list of itself, printed': twice(60, '[0]', '[n.a, n.a]', '{{ n.a }}'),
  'a list of itself as JSON': twice(60, '[0]', '[n.a, n.a]', '{{ n.a | tojson }}'),
  'a list of itself, compared': `${twice(60, '[0]', '[n.a, n.a]', '')}{% set m = namespace(a=[0]) %}{% for i in range(60) %}{% set m.a = [m.a, m.a] %}{% endfor %}{{ n.a == m.a }}`,
  'items that are all compared': '{{ range(99999) | map("string") | unique | list | length }}',
  'items that are all looked for': '{% set a = range(99999) %}{% for b in a %}{% if -1 in a %}{% endif %}{% endfor %}',
  'long texts that are read again and again':
    "{% set a = 'x' * 10 ** 7 %}{% for b in range(99999) %}{% if a[::-1] | length %}{% endif %}{% endfor %}",
  'long texts that are compared':
    "{% set a = 'x' * 10 ** 7 %}{% for b in range(99999) %}{% if a < a %}{% endif %}{% endfor %}",
  'a wide indent': "{{ 'a\\nb' | indent(400000000) }}",
  'endless recursion': '{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}',
  'recursion that branches':
    '{% macro f(a) %}{% if a %}{{ f(a - 1) }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(60) }}',
};

test.each(Object.keys(hostile))('%s', (name) => {
  const render = compileJinja(hostile[name] as string);
  const before = process.cpuUsage();
  expect(() => render({ messages: [] })).toThrow(DataError);
  const { user, system } = process.cpuUsage(before);
  // The limit of a rendering is one second of this process, whatever else the machine does; the rest is for the collector and the last step.
  expect((user + system) / 1e6).toBeLessThan(3);
});

test('parentheses without end, and sources without end, do not compile', () => {
  expect(() => compileJinja(`{{ ${'('.repeat(200_000)} }}`)).toThrow(/must compile/);
  expect(() => compileJinja(`{{ ${'not '.repeat(200_000)} 1 }}`)).toThrow(DataError);
  expect(() => compileJinja('x'.repeat(2 ** 20 + 1))).toThrow('must have at most 1048576 characters');
});

const outside = [
  'constructor',
  '__proto__',
  'prototype',
  'toString',
  '__class__',
  '__init__',
  'caller',
  'callee',
  'valueOf',
  'values',
];

test('nothing but values of the template can be reached', () => {
  const owners = [
    "''",
    '[]',
    '{}',
    '1',
    '1.5',
    'true',
    'range',
    'namespace()',
    'messages',
    'messages[0]',
    'loopless',
    'strftime_now',
  ];
  for (const owner of owners) {
    for (const name of outside) {
      for (const path of [`${owner}.${name}`, `${owner}['${name}']`, `(${owner} | attr('${name}'))`]) {
        if (name === 'values' && !path.includes('attr') && ['{}', 'messages[0]'].includes(owner)) continue;
        // Undefined, as an attribute that does not exist; what has no attributes refuses them.
        const render = compileJinja(`{{ ${path} is defined }}`);
        let text = 'False';
        try {
          text = render({ messages: [{ role: 'user', content: 'x' }] });
        } catch (error) {
          expect(error, path).toBeInstanceOf(DataError);
        }
        expect(text, path).toBe('False');
      }
    }
  }
  expect(() => compileJinja("{{ ''.constructor.constructor('return process')() }}")({})).toThrow(DataError);
  const given = JSON.parse('{"__proto__": {"polluted": 1}, "constructor": 2}') as Record<string, unknown>;
  expect(compileJinja('{{ given.constructor }} {{ given.polluted }}')({ given })).toBe('2 ');
  expect(compileJinja('{% set __proto__ = {"a": 1} %}{{ a }}|{{ __proto__.a }}')({})).toBe('|1');
});

test.each(['constructor', '__proto__', 'toString', '__class__', 'valueOf', 'process', 'globalThis', 'require'])(
  'reaches nothing by %s',
  (name) => {
    const render = compileJinja(`{{ ${name} }}|{{ m.${name} }}|{{ s.${name} }}|{{ m['${name}'] }}`);
    expect(render({ m: { a: 1 }, s: 'x' })).toBe('|||');
  },
);

test('white space in messages takes linear time', () => {
  const content = `${' '.repeat(2 ** 20)}x${' '.repeat(2 ** 20)}x`;
  const started = performance.now();
  expect(
    compileJinja('{{ content | trim | length }} {{ content.strip() | length }} {{ content.rsplit(none, 1) | length }}')(
      { content },
    ),
  ).toBe(`${2 ** 20 + 2} ${2 ** 20 + 2} 2`);
  expect(performance.now() - started).toBeLessThan(3000);
});

test('a long conversation stays far below the limits', () => {
  const messages = Array.from({ length: 10_000 }, (_, index) => ({
    role: index % 2 ? 'assistant' : 'user',
    content: 'word '.repeat(60),
  }));
  const source =
    "{% for m in messages[::-1] %}{% if m.role == 'user' %}{% endif %}{% endfor %}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim }}{% endfor %}";
  expect(compileJinja(source)({ messages }).length).toBeGreaterThan(3_000_000);
});
