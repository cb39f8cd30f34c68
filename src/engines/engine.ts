/**
 * The token-level interface of every engine. Layer 4. Shape after Tinker's API: the caller owns the algorithm, the engine the arithmetic.
 * Users never call the `do…` methods; `server/` does. Every implementation passes `contract.ts`.
 */
import type { TextConstraint } from '../core/constraint.ts';
import type { EngineError } from '../core/errors.ts';

/**
 * Sampling settings of one request. Logprobs are always of the full distribution at `temperature`, before bias, penalties, the constraint,
 * min-p, top-k and top-p, which restrict and shift what is drawn alone: what is trained is the policy itself.
 */
export interface SamplingParams {
  readonly maxTokens: number;
  /** 0 = greedy, whose logprobs are reported at temperature 1. */
  readonly temperature: number;
  /** 1 = off. */
  readonly topP: number;
  /** 0 = off. */
  readonly topK: number;
  readonly seed: number;
  /** Sampling one of these ends the sequence; the id stays part of it. */
  readonly stopTokenIds: readonly number[];
  /** The sequence ends as soon as its decoded text contains one of these. */
  readonly stopStrings: readonly string[];
  /** Number of most likely alternatives to report per token, 0–20. */
  readonly topLogprobs: number;
  /** Tokens less likely than this share of the likeliest one are not drawn, 0 to 1; 0 = off, the default. */
  readonly minP?: number;
  /** Taken off the logit for each time that a token was sampled, −2 to 2; default 0. */
  readonly frequencyPenalty?: number;
  /** Taken off the logit of every token that was sampled, −2 to 2; default 0. */
  readonly presencePenalty?: number;
  /** Positive logits of tokens in prompt or reply are divided by it, negative ones multiplied; above 0, default 1. */
  readonly repetitionPenalty?: number;
  /** Added to the logits of tokens, each named once, −100 to 100. */
  readonly logitBias?: readonly (readonly [tokenId: number, bias: number])[];
  /** What the sampled text must look like; a stop token is drawn exactly where the text may end. */
  readonly constraint?: TextConstraint;
  /** Neither stop token nor stop string ends the sequence before so many tokens; default 0. */
  readonly minTokens?: number;
}

export interface SampleRequest {
  readonly promptIds: readonly number[];
  readonly sampling: SamplingParams;
  /** Policy to sample from; null = the newest at the moment the request is admitted. It is kept to the end of the sequence. */
  readonly policyStep: number | null;
  /** false: one `tokens` event at the end; true: one as soon as tokens are there. */
  readonly isStreaming: boolean;
  /** Asks for the event `prompt`, with so many alternatives, 0–20, per prompt token. */
  readonly promptLogprobs?: number;
  readonly signal?: AbortSignal;
}

export interface TokenAlternative {
  readonly tokenId: number;
  readonly logprob: number;
}

export type SampleEvent =
  /** Comes first where it is asked for. */
  | {
      readonly type: 'prompt';
      /** Of each prompt token after those before it, at the sampling temperature; null for the first. */
      readonly logprobs: readonly (number | null)[];
      /** One list per token, best first; present if `promptLogprobs` is above 0. */
      readonly topLogprobs?: readonly (readonly TokenAlternative[] | null)[];
    }
  | {
      readonly type: 'tokens';
      readonly tokenIds: readonly number[];
      /** Natural log, float32 values, of each sampled token at the sampling temperature. */
      readonly logprobs: readonly number[];
      /** One list per token, best first; present when asked for. */
      readonly topLogprobs?: readonly (readonly TokenAlternative[])[];
    }
  | {
      readonly type: 'finish';
      /** `stop`: a stop token or stop string; `length`: maxTokens or the model's context is used up. */
      readonly reason: 'stop' | 'length';
      readonly policyStep: number;
      /** Prompt tokens whose keys and values were found in the cache. */
      readonly cachedTokens: number;
    };

/** One training sequence. All arrays have length T; position t describes token t itself, not its successor. */
export interface Datum {
  readonly tokenIds: readonly number[];
  /** 1 on tokens the policy sampled (never on token 0), which are what the loss sees. */
  readonly actionMask: readonly number[];
  /** Logprob of token t when it was sampled; 0 where actionMask is 0. */
  readonly samplingLogprobs: readonly number[];
  readonly advantages: readonly number[];
  /** Sampling temperature of token t (greedy counts as 1); 1 where actionMask is 0. */
  readonly temperatures: readonly number[];
  /** Weight of token t in the loss and its terms; default 1. */
  readonly tokenWeights?: readonly number[];
  /** Logprob of token t under the reference policy; read where `klWeight` is not 0. */
  readonly referenceLogprobs?: readonly number[];
  /** Mean of training − sampling over all action tokens of the trajectory, at the weights being trained; read by `gspo`. */
  readonly sequenceLogRatio?: number;
  /** Read by `forwardKlTopK` and `reverseKlTopK`. */
  readonly teacher?: TeacherTokens;
}

/** A teacher's best tokens in place of each token, of length T: as many for each action token as for any other, none elsewhere. */
export interface TeacherTokens {
  readonly tokenIds: readonly (readonly number[])[];
  /** At the token's temperature. */
  readonly logprobs: readonly (readonly number[])[];
}

/** What every policy loss may add. 0, the default: not computed. */
interface PolicyTerms {
  /** Takes off weight × Σ w·H, H the policy's entropy at the token. */
  readonly entropyBonus?: number;
  /** Adds weight × Σ w·k3, the estimate of KL(policy ‖ reference). */
  readonly klWeight?: number;
}

/** cispo: the ratio's weight is held to [clipLow, clipHigh]; ppo, gspo: the ratio to [1 − clipLow, 1 + clipHigh]. */
interface ClipRange {
  readonly clipLow: number;
  readonly clipHigh: number;
}

/** Those that read advantages, and to which terms may be added. */
export type PolicyLoss =
  | ({ readonly name: 'cispo' | 'ppo' | 'gspo' } & ClipRange & PolicyTerms)
  | ({ readonly name: 'importanceSampling' } & PolicyTerms);

export function isPolicyLoss(loss: LossConfig): loss is PolicyLoss {
  return !['crossEntropy', 'forwardKlTopK', 'reverseKlTopK'].includes(loss.name);
}

/** Ratios are to `samplingLogprobs`. Every loss is a sum over action tokens with weights w = `tokenWeights` × `scale`. */
export type LossConfig = PolicyLoss | { readonly name: 'crossEntropy' | 'forwardKlTopK' | 'reverseKlTopK' };

export interface ForwardBackwardRequest {
  readonly data: readonly Datum[];
  readonly loss: LossConfig;
  /** Multiplies the summed token losses, e.g. 1 / (action tokens of the whole batch); gradients of several calls add up. */
  readonly scale: number;
}

export interface ForwardBackwardResult {
  readonly loss: number;
  /** Per datum, length T: logprob of token t under the trained policy at `temperatures`; 0 where actionMask is 0. */
  readonly trainingLogprobs: readonly (readonly number[])[];
  /** Mean entropy of the policy over action tokens, nats. */
  readonly entropy: number;
  readonly actionTokens: number;
  /** Tokens of the data, padding tokens that packing added, packed rows. */
  readonly tokens: number;
  readonly paddingTokens: number;
  readonly packedRows: number;
}

export interface OptimStepRequest {
  readonly learningRate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  /** 0 = no clipping. */
  readonly maxGradNorm: number;
}

export interface OptimStepResult {
  /** Global L2 norm before clipping. */
  readonly gradNorm: number;
  /** Optimizer updates since the run began. */
  readonly gradientSteps: number;
}

export interface LogprobsRequest {
  readonly tokenIds: readonly number[];
  readonly temperature: number;
  /** `served`: through the sampler at a policy step; `trainer`: through the training graph at the weights being trained. */
  readonly source: { readonly kind: 'served'; readonly policyStep: number } | { readonly kind: 'trainer' };
}

/**
 * Weights to score with. `trainer`: those being trained; `base`: the model as it was before any training, without adapter;
 * `checkpoint`: what `doSave` wrote into the directory.
 */
export type ScoreSource =
  | { readonly kind: 'trainer' }
  | { readonly kind: 'base' }
  | { readonly kind: 'checkpoint'; readonly directory: string };

/** Many sequences at once; the caller bounds their number. */
export interface ScoreRequest {
  readonly data: readonly Pick<Datum, 'tokenIds' | 'actionMask' | 'temperatures'>[];
  readonly source: ScoreSource;
}

export interface EngineInfo {
  readonly parameters: number;
  readonly trainableParameters: number;
  readonly maxPositions: number;
  readonly vocabSize: number;
  /** Policy steps that can be sampled from, ascending. */
  readonly policySteps: readonly number[];
  readonly gradientSteps: number;
  readonly runningSequences: number;
  readonly waitingSequences: number;
  /** Resident memory of the engine's process, bytes, now and at its highest. */
  readonly rssBytes: number;
  readonly peakRssBytes: number;
  /** Totals since start. */
  readonly sampledTokens: number;
  readonly prefilledTokens: number;
  readonly samplingSeconds: number;
  readonly trainedTokens: number;
  readonly trainingSeconds: number;
}

/** A token-level engine. Methods reject with typed errors of `core/errors.ts`; nothing waits without a limit. */
export interface Engine {
  readonly specificationVersion: 1;
  doSample(request: SampleRequest): AsyncIterable<SampleEvent>;
  /** Adds to the accumulated gradients. */
  doForwardBackward(request: ForwardBackwardRequest): Promise<ForwardBackwardResult>;
  /** AdamW on the accumulated gradients, which it clears. Served policies do not change until `doPublish`. */
  doOptimStep(request: OptimStepRequest): Promise<OptimStepResult>;
  /** Makes the weights being trained servable as `step`, the newest. In-flight requests keep their policy. */
  doPublish(request: { readonly step: number }): Promise<void>;
  /** Writes into an existing directory: the PEFT adapter (or, in full-parameter training, `model.safetensors`) and the optimizer state. */
  doSave(request: { readonly directory: string }): Promise<void>;
  /** Restores what `doSave` wrote, bit for bit. */
  doLoad(request: { readonly directory: string }): Promise<void>;
  /** Logprob of each given token but the first, whose entry is 0. Length = tokenIds. */
  doLogprobs(request: LogprobsRequest): Promise<readonly number[]>;
  /**
   * Per datum, length T: logprob of each action token at `temperatures`, 0 elsewhere, through the training graph. Weights being trained,
   * gradients and optimizer stay as they are. Rejects with CheckpointError if the directory holds no checkpoint of this model.
   */
  doScore(request: ScoreRequest): Promise<readonly (readonly number[])[]>;
  doInfo(): Promise<EngineInfo>;
  /** Ends the engine's process; in-flight requests fail with EngineError. Idempotent. */
  close(): Promise<void>;
  /** Resolves when the engine ended without `close`, to what its callers were told; an engine that cannot die has none. */
  readonly died?: Promise<EngineError>;
  /** Id of the process that computes, where it is one of its own. */
  readonly processId?: () => number | null;
  /** Whether it takes requests; an engine that cannot be anything else but running has none. */
  readonly state?: () => EngineState;
}

/** `restarting`: requests wait a limited time; `failed`: it died too often in a row, and is not started again. */
export type EngineState = 'running' | 'restarting' | 'failed';
