/**
 * Where the Unicode tables of Hugging Face's tokenizers are older than those of a JavaScript engine. Layer 1.
 * Source: huggingface/tokenizers 0.23: Oniguruma knows Unicode 16, its normalization forms know Unicode 9. Both tables were read
 * off the Python package, and `test/fixtures/tokenizers/unicode.json` compares every code point.
 */

/** Assigned after Unicode 16, so that no letter, number, mark or space of a pattern of Oniguruma is one of them. */
const newSince16 =
  '88f c5c cdc 1acf-1add 1ae0-1aeb 20c1 2b96 a7ce-a7cf a7d2 a7d4 a7f1 fbc3-fbd2 fd90-fd91 fdc8-fdce 10940-10959 10ec5-10ec7 ' +
  '10ed0-10ed8 10efa-10efb 11b60-11b67 11db0-11ddb 11de0-11de9 16ea0-16eb8 16ebb-16ed3 16ff2-16ff6 187f8-187ff 18d09-18d1e ' +
  '18d80-18df2 1ccfa-1ccfc 1ceba-1ced0 1cee0-1cef0 1e6c0-1e6de 1e6e0-1e6f5 1e6fe-1e6ff 1f6d8 1f777-1f77a 1f8d0-1f8d8 ' +
  '1fa54-1fa57 1fa8a 1fa8e 1fac8 1facd 1faea 1faef 1fbfa 2b73a-2b73f 2cea2-2cead 323b0-33479';

/** Combining, composed or composable only in later versions: in Unicode 9 nothing moves or joins across them. */
const inertInNfc =
  '7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1add 1ae0-1aeb 1df6-1dfa a82c 105c9 105d2 105da 105e4 10d24-10d27 ' +
  '10d69-10d6d 10eab-10eac 10efa-10efb 10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 11382-11385 1138b 1138e 11390-11391 ' +
  '113c2 113c5 113c7-113c8 113ce-113d0 1145e 11839-1183a 11935 11938 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 ' +
  '11d44-11d45 11d97 11f41-11f42 1611e 16121-16129 1612f 16d63 16d67-16d6a 16ff0-16ff1 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef ' +
  '1e4ec-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5';

const classBody = (ranges: string): string => ranges.replaceAll(/[0-9a-f]+/g, '\\u{$&}').replaceAll(' ', '');

// U+0295 became a letter without case in Unicode 17.
const changed = new RegExp(`[\\u{295}${classBody(newSince16)}]`, 'u');
const everyChanged = new RegExp(changed, 'gu');
const inert = new RegExp(`[${classBody(inertInNfc)}]`, 'u');
const betweenInert = new RegExp(`[^${classBody(inertInNfc)}]+`, 'gu');

/** A text of the same length in UTF-16 whose characters have the categories that Unicode 16 gave them. */
export function toUnicode16(text: string): string {
  if (!changed.test(text)) return text;
  // Noncharacters are as unassigned as the new ones were; U+0250 is a small letter as U+0295 was.
  return text.replace(everyChanged, (found) =>
    found === '\u0295' ? '\u0250' : found.length === 1 ? '\uffff' : '\u{10ffff}',
  );
}

/** Normalization form C of Unicode 9. */
export function toNfc(text: string): string {
  if (!inert.test(text)) return text.normalize('NFC');
  return text.replace(betweenInert, (between) => between.normalize('NFC'));
}
