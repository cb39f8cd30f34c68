import { describe, expect, test } from 'vitest';
import { DataError } from '../core/errors.ts';
import { compileJinja } from './jinja.ts';
import { parseJsonObject } from './jinja-json.ts';
import { toValue } from './jinja-values.ts';

const render = (source: string, variables: Readonly<Record<string, unknown>> = {}): string =>
  compileJinja(source)(variables);

describe('refused when the template is compiled', () => {
  test.each([
    ['an unknown filter', '{{ x | urlencode }}', 'filter must be one of abs, attr,'],
    [
      'an unknown filter with arguments, deep inside',
      '{% if a %}{% for b in c %}{{ b | wrap(3) }}{% endfor %}{% endif %}',
      "got 'wrap'",
    ],
    ['an unknown test', '{{ x is escaped }}', "got 'escaped'"],
    ['a test with arguments', '{{ 4 is divisibleby(2) }}', 'must compile, got '],
    ['an unknown statement', "{% include 'other' %}", 'must compile, got Unknown statement type: include'],
    ['an unfinished one', '{% if x %}', 'must compile, got '],
  ])('%s', (_name, source, message) => {
    expect(() => compileJinja(source)).toThrow(DataError);
    expect(() => compileJinja(source)).toThrow(message);
  });
});

describe('refused when it is rendered', () => {
  test.each([
    ['a method that is not implemented', "{{ 'a'.zfill(3) }}", 'str.zfill is not implemented, only strip,'],
    ['a method that changes its list', '{{ [].append(1) }}', 'list.append is not implemented'],
    ['an attribute of an undefined value', '{{ a.b }}', "an undefined value has no attribute 'b'"],
    ['text and number', "{{ 'a' + 1 }}", "unsupported operand type(s) for +: 'str' and 'int'"],
    ['a call of what is no function', "{{ 'a'() }}", "'str' object is not callable"],
    ['a loop over a number', '{% for a in 3 %}{% endfor %}', "'int' object is not iterable"],
    ['a whole number beyond 2^53', '{{ 9007199254740991 + 1 }}', 'must stay below 2^53'],
    ['an unknown directive', "{{ strftime_now('%Q') }}", 'strftime_now must use known directives, got %Q'],
    ['a division by zero', '{{ 1 // 0 }}', 'division by zero'],
    ['a huge range', '{{ range(1000000) }}', 'range() must have at most 100000 items'],
    ['too few values to unpack', '{% set a, b = [1] %}', 'must unpack 2 values, got 1'],
    ['its own exception', "{{ raise_exception('only users') }}", 'chat template: only users'],
  ])('%s', (_name, source, message) => {
    expect(() => render(source)).toThrow(DataError);
    expect(() => render(source)).toThrow(message);
  });

  test('a template that calls itself without end', () => {
    expect(() => render('{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}')).toThrow(DataError);
  });

  test('input that is not plain data', () => {
    expect(() => render('{{ a }}', { a: () => 1 })).toThrow('input must be plain data, got a function');
  });
});

test('lines may end as on Windows', () => {
  expect(render('{% if true %}\r\n  a\r\nb{% endif %}\r\n')).toBe('  a\nb');
});

test('a key that is a method of dict is reached by brackets only', () => {
  expect(render("{{ a['items'] }}{{ a.items is callable }}{{ a.item }}", { a: { items: 1, item: 2 } })).toBe('1True2');
});

test('the input is not changed', () => {
  const input = { list: [1], dict: { a: [2] } };
  render('{% set ns = namespace(dict) %}{% set ns.a = 3 %}{{ list + [4] }}', input);
  expect(input).toEqual({ list: [1], dict: { a: [2] } });
});

describe('JSON text', () => {
  test('keeps order, kinds and size of what it holds', () => {
    const text = '{"b": 1.0, "1": 12345678901234567890, "a": [1e3, -0, "x\\u00e9\\"}"], "n": null, "d": {}}';
    expect(render('{{ a | tojson }}', { a: parseJsonObject(text) })).toBe(
      '{"b": 1.0, "1": 12345678901234567890, "a": [1000.0, 0, "xé\\"}"], "n": null, "d": {}}',
    );
  });

  test('null for what is not the text of an object', () => {
    expect(['[1]', '1', '"a"', 'null', '{"a": ', '{a: 1}', ''].map(parseJsonObject)).toEqual(Array(7).fill(null));
  });

  test('numbers of plain data are ints where they are whole', () => {
    expect(render('{{ a }}', { a: [1, 1.5, -0, 1e21] })).toBe('[1, 1.5, 0, 1e+21]');
    expect(toValue({ a: undefined, b: null })).toEqual(new Map([['b', null]]));
  });
});
