/** What every integration needs of a model. Layer 6. */
import type { InferenceEndpoint } from '../sdk/backend.ts';

/** A registered `TrainableModel`, or a `Model` behind any OpenAI-compatible endpoint, to compare with. */
export interface ServedModel {
  endpoint(): InferenceEndpoint;
  /** The newest policy, or the policy of one step. */
  getInferenceName(step?: number): string;
}

export interface ServedModelOptions {
  /** The policy step that answers; default the newest, at each call. */
  readonly step?: number;
}
