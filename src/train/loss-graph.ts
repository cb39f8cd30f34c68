/**
 * From log-probabilities over the vocabulary to loss, entropy and logprobs of the targets: the end of every training graph, and what is
 * fed to it. Layer 3.
 */
import { ConfigError } from '../core/errors.ts';
import { exp, input, mul, neg, reduceSum, sub, type Tensor, takeAlongLast } from '../graph/builder.ts';
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import { cispoLoss, crossEntropyLoss, entropySum, type LossInputs, ppoLoss, type TokenInputs } from './loss.ts';

/** A loss and its settings; clip bounds mean what `loss.ts` says. */
export type LossSpec =
  | {
      readonly name: 'cispo' | 'ppo';
      readonly clipLow: number;
      readonly clipHigh: number;
      readonly entropyBonus?: number;
    }
  | { readonly name: 'crossEntropy' };

/** A loss as a graph. That of an entropy bonus costs six passes over all logprobs, which its gradient reads. */
export type LossKind = LossSpec['name'] | 'cispoWithEntropy' | 'ppoWithEntropy';

/** What a graph ends in: a loss, or logprobs alone. */
export type GraphKind = LossKind | 'logprobs';

export function lossKind(loss: LossSpec): LossKind {
  if (loss.name === 'crossEntropy' || !loss.entropyBonus) return loss.name;
  return `${loss.name}WithEntropy`;
}

/** Throws ConfigError on an unknown loss and on settings that are not finite. */
export function checkLoss(loss: LossSpec): void {
  switch (loss.name) {
    case 'crossEntropy':
      return;
    case 'cispo':
    case 'ppo':
      for (const [name, value] of Object.entries({ ...loss, name: 0 })) {
        if (!Number.isFinite(value)) throw new ConfigError(`loss: ${name} must be finite, got ${value}`);
      }
      return;
    default:
      throw new ConfigError(
        `loss: name must be cispo, ppo or crossEntropy, got '${(loss satisfies never as LossSpec).name}'`,
      );
  }
}

/** An input with one row for each target. */
export const column = (name: string): Tensor => input(name, ['M', 1]);

/** The logprobs of the targets, [M, 1]. `distribution` is [M, V], log-probabilities. */
export function targetLogprobs(distribution: Tensor): Tensor {
  return takeAlongLast(distribution, input('targets', ['M', 1], 'int64'));
}

/** Outputs `loss` and `entropy`, both summed and of shape [], and `logprobs` [M, 1]. */
export function lossOutputs(
  kind: LossKind,
  distribution: Tensor,
): { readonly loss: Tensor; readonly logprobs: Tensor; readonly entropy: Tensor } {
  const logprobs = targetLogprobs(distribution);
  const entropies = neg(reduceSum(mul(exp(distribution), distribution), [1], true)); // [M, 1]
  return {
    loss: buildLoss(kind, { trainingLogprobs: logprobs, weights: column('weights'), entropies }),
    logprobs,
    entropy: reduceSum(mul(entropies, column('actions')), [0, 1]),
  };
}

function buildLoss(kind: LossKind, tokens: TokenInputs & { readonly entropies: Tensor }): Tensor {
  if (kind === 'crossEntropy') return crossEntropyLoss(tokens);
  const inputs: LossInputs = {
    ...tokens,
    samplingLogprobs: column('samplingLogprobs'),
    advantages: column('advantages'),
  };
  const clip = { clipLow: input('clipLow', []), clipHigh: input('clipHigh', []) };
  const isCispo = kind === 'cispo' || kind === 'cispoWithEntropy';
  const policyLoss = isCispo ? cispoLoss(inputs, clip) : ppoLoss(inputs, clip);
  if (kind === 'cispo' || kind === 'ppo') return policyLoss;
  return sub(policyLoss, mul(input('entropyBonus', []), entropySum(tokens)));
}

/** What `lossOutputs` reads, from the feeds of a microbatch; the weight of a token is its own times `scale`. */
export function feedLoss(
  feeds: Readonly<Record<string, HostTensor>>,
  loss: LossSpec,
  scale: number,
): Record<string, HostTensor> {
  const { samplingLogprobs, advantages, tokenWeights, actions, ...shared } = feeds;
  const tokenWeight = tokenWeights!.data as Float32Array;
  const weights = {
    ...actions!,
    data: (actions!.data as Float32Array).map((action, i) => action * tokenWeight[i]! * scale),
  };
  const common = { ...shared, actions: actions!, weights };
  if (loss.name === 'crossEntropy') return common;
  const scalar = (value: number): HostTensor => hostTensor(Float32Array.of(value), []);
  return {
    ...common,
    samplingLogprobs: samplingLogprobs!,
    advantages: advantages!,
    clipLow: scalar(loss.clipLow),
    clipHigh: scalar(loss.clipHigh),
    ...(loss.entropyBonus ? { entropyBonus: scalar(loss.entropyBonus) } : {}),
  };
}

/** The same where logprobs alone are wanted. */
export function feedTargets(feeds: Readonly<Record<string, HostTensor>>): Record<string, HostTensor> {
  const { samplingLogprobs, advantages, tokenWeights, actions, ...shared } = feeds;
  return shared;
}
