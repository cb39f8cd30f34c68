/** Formats of strings as regular expressions. Layer 3. Source: JSON Schema 2020-12 Validation, section 7.3; RFC 3339, 4122, 5321, 3986. */

const year = '[0-9]{4}';
const date = `${year}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))`;
const zone = '(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])';
const clock = '([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?';
const label = '[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?';
const octet = '(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])';
const hex16 = '[0-9a-f]{1,4}';

/** Each is part of what the format admits: no leap days and seconds, lower case names. */
export const stringFormats: Readonly<Record<string, string>> = {
  date,
  time: `${clock}${zone}`,
  'date-time': `${date}T${clock}${zone}`,
  duration:
    'P([0-9]{1,6}W|[0-9]{1,6}D(T[0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?)?|T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))',
  uuid: '[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}',
  ipv4: `${octet}(\\.${octet}){3}`,
  ipv6: `${hex16}(:${hex16}){7}`,
  hostname: `${label}(\\.${label}){0,5}`,
  email: `[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,30}){0,3}@${label}(\\.[a-z]([a-z0-9-]{0,20}[a-z0-9])?){1,4}`,
  uri: `[a-z][a-z0-9+.-]{0,15}://${label}(\\.${label}){0,5}(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,200}){0,20}(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,500})?(#[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,200})?`,
};
