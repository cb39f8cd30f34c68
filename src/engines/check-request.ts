/** Checks of a sample request that every engine makes before it samples. Layer 4. */
import { DataError } from '../core/errors.ts';
import { refuseUnknownKeys } from '../core/options.ts';
import { checkAlternatives, checkLogitBias, checkSampling } from '../infer/sampling-params.ts';
import type { SampleRequest } from './engine.ts';

const names: Readonly<Record<keyof SampleRequest, true>> = {
  promptIds: true,
  sampling: true,
  policyStep: true,
  isStreaming: true,
  promptLogprobs: true,
  signal: true,
};

/** Throws DataError on a prompt that the model cannot read, ConfigError on a setting that is unknown or out of range. */
export function checkSampleRequest(
  request: SampleRequest,
  { maxPositions, vocabSize }: { readonly maxPositions: number; readonly vocabSize: number },
): void {
  refuseUnknownKeys('sample', request, Object.keys(names));
  const { promptIds, sampling, promptLogprobs } = request;
  if (promptIds.length === 0 || promptIds.length >= maxPositions) {
    throw new DataError(`prompt: must have 1 to ${maxPositions - 1} tokens, got ${promptIds.length}`);
  }
  checkTokenIds(promptIds, vocabSize, 'prompt');
  checkSampling(sampling);
  if (sampling.logitBias !== undefined) checkLogitBias(sampling.logitBias, vocabSize);
  if (promptLogprobs !== undefined) checkAlternatives('promptLogprobs', promptLogprobs);
}

/** Throws DataError, with `what`, that names the first id outside the vocabulary. */
export function checkTokenIds(tokenIds: readonly number[], vocabSize: number, what: string): void {
  const wrong = tokenIds.find((token) => !Number.isSafeInteger(token) || token < 0 || token >= vocabSize);
  if (wrong !== undefined) throw new DataError(`${what}: token ids must be below ${vocabSize}, got ${wrong}`);
}
