/**
 * Secrets and personal data in text: where each kind begins and ends. Layer 5.
 * Every search is linear in the text, whatever it holds: a pattern either matches at once or fails within a bounded number of
 * characters, and what has no such pattern is searched by hand. What is found errs on the side of too much.
 */

/** `[from, to)` of each find, in order and apart. */
type Finder = (text: string) => Iterable<readonly [number, number]>;

export const patternNames = [
  'private-key',
  'art-key',
  'anthropic-key',
  'openai-key',
  'aws-key',
  'github-token',
  'hugging-face-token',
  'google-key',
  'slack-token',
  'jwt',
  'bearer-token',
  'url-password',
  'email',
  'credit-card',
  'phone',
] as const;
export type PatternName = (typeof patternNames)[number];

/** In the order in which they are applied: the more special one first. */
export const finders: { readonly [K in PatternName]: Finder } = {
  'private-key': findPrivateKeys,
  'art-key': matches(/art_(?:[0-9a-f]{12}|local)_[\w-]{43}/g),
  'anthropic-key': matches(/sk-ant-[\w-]{20,400}/g),
  'openai-key': matches(/sk-[\w-]{20,400}/g),
  'aws-key': matches(/(?:AKIA|ASIA)[0-9A-Z]{16}|(?<=aws_secret_access_key["']?\s?[=:]\s?["']?)[\w/+=]{40}/gi),
  'github-token': matches(/gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_\w{22,255}/g),
  'hugging-face-token': matches(/hf_[A-Za-z0-9]{30,100}/g),
  'google-key': matches(/AIza[\w-]{35}/g),
  'slack-token': matches(/xox[abeprs]-[\w-]{10,250}/g),
  jwt: findJwts,
  'bearer-token': matches(/(?<=bearer\s)[\w.~+/-]{20,4096}=*/gi),
  'url-password': matches(/(?<=:\/\/[^\s/:@]{1,64}:)[^\s/:@]{1,128}(?=@)/g),
  email: findEmails,
  'credit-card': matches(/(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)/g, isCardNumber),
  phone: matches(/\+?\(?\d[\d ().-]{5,24}\d/g, isPhoneNumber),
};

function matches(pattern: RegExp, isReal: (found: string) => boolean = () => true): Finder {
  return function* find(text) {
    for (const match of text.matchAll(pattern)) {
      if (isReal(match[0])) yield [match.index, match.index + match[0].length];
    }
  };
}

/** A block without an end is cut off text: everything after its begin is taken. */
function* findPrivateKeys(text: string): Iterable<readonly [number, number]> {
  const begin = /-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----/g;
  const end = /-----END [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----/g;
  for (let match = begin.exec(text); match !== null; match = begin.exec(text)) {
    end.lastIndex = begin.lastIndex;
    const last = end.exec(text);
    const to = last === null ? text.length : end.lastIndex;
    yield [match.index, to];
    if (last === null) return;
    begin.lastIndex = to;
  }
}

/** Three parts with dots between them, of which header and payload are base64url of an object: `eyJ` is `{"`. */
function* findJwts(text: string): Iterable<readonly [number, number]> {
  let from = -1;
  let parts = 0;
  let end = -1;
  for (const { 0: part, index } of text.matchAll(/[\w-]+/g)) {
    const isNext = parts > 0 && parts < 3 && index === end + 1 && text[end] === '.';
    if (isNext && (parts === 2 || part.startsWith('eyJ'))) {
      parts += 1;
      end = index + part.length;
      if (parts === 3) yield [from, end];
      continue;
    }
    // A whole token may stand behind other letters, as in the `\n` of JSON in a string.
    const start = part.indexOf('eyJ');
    parts = start >= 0 && part.length - start >= 10 ? 1 : 0;
    from = index + start;
    end = index + part.length;
  }
}

const isLocalCharacter = (code: number): boolean =>
  isAlphanumeric(code) || ".!#$%&'*+/=?^_`{|}~-".includes(String.fromCharCode(code));
const maxLocalLength = 64;

/** From each `@` outward, so that text without one costs nothing. */
function* findEmails(text: string): Iterable<readonly [number, number]> {
  const domain = /[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}/y;
  let done = 0;
  for (let at = text.indexOf('@'); at >= 0; at = text.indexOf('@', at + 1)) {
    let from = at;
    while (from > done && at - from < maxLocalLength && isLocalCharacter(text.charCodeAt(from - 1))) from -= 1;
    domain.lastIndex = at + 1;
    if (from === at || !domain.test(text)) continue;
    done = domain.lastIndex;
    yield [from, done];
  }
}

function isAlphanumeric(code: number): boolean {
  return (code >= 48 && code <= 57) || (code >= 65 && code <= 90) || (code >= 97 && code <= 122) || code > 127;
}

/** Numbers of the large card networks whose check digit (Luhn) is right. */
function isCardNumber(found: string): boolean {
  const digits = found.replace(/\D/g, '');
  const isIssued =
    /^(4\d{12}(\d{3}){0,2}|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(0[0-5]|[68]\d)\d{11}|35\d{14}|6\d{15,18})$/.test(
      digits,
    );
  if (!isIssued) return false;
  const sum = [...digits].reverse().reduce((total, digit, index) => {
    const value = Number(digit) * (index % 2 === 0 ? 1 : 2);
    return total + (value > 9 ? value - 9 : value);
  }, 0);
  return sum % 10 === 0;
}

/** With a country code, or in the three groups that are common where it is left out. */
function isPhoneNumber(found: string): boolean {
  const digits = found.replace(/\D/g, '').length;
  if (found.startsWith('+')) return digits >= 8 && digits <= 15;
  return digits >= 10 && /^\(?\d{2,4}\)?[ .-]{1,2}\d{3,4}[ .-]\d{3,4}$/.test(found);
}
