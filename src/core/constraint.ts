/**
 * What sampled text must look like: response formats, required tools and tool-call syntax all become one of these. Layer 0.
 * The shapes follow xgrammar's structural tags; the engine writes its own grammars for them.
 */

/** A JSON schema; `true` admits any JSON value. */
export type JsonSchema = boolean | Readonly<Record<string, unknown>>;

export type TextConstraint =
  | { readonly type: 'anyText' }
  | { readonly type: 'literal'; readonly text: string }
  | { readonly type: 'jsonSchema'; readonly schema: JsonSchema }
  | { readonly type: 'regex'; readonly pattern: string }
  | { readonly type: 'sequence'; readonly parts: readonly TextConstraint[] }
  | { readonly type: 'oneOf'; readonly options: readonly TextConstraint[] }
  | TagConstraint
  /** Free text in which each trigger begins one of the tags. */
  | {
      readonly type: 'triggeredTags';
      readonly triggers: readonly string[];
      readonly tags: readonly TagConstraint[];
      readonly isRequired: boolean;
      /** The text ends with the first tag. */
      readonly isSingle: boolean;
    }
  | {
      readonly type: 'separatedTags';
      readonly tags: readonly TagConstraint[];
      readonly separator: string;
      readonly isRequired: boolean;
      readonly isSingle: boolean;
    };

export interface TagConstraint {
  readonly type: 'tag';
  readonly begin: string;
  readonly content: TextConstraint;
  readonly end: string;
}
