/**
 * From log-probabilities over the vocabulary to loss, entropy and logprobs of the targets: the end of every training graph, and what is
 * fed to it. Layer 3. A loss is one row of `losses`, what may be added to a policy's loss one row of `terms`.
 */
import { ConfigError, DataError } from '../core/errors.ts';
import { add, exp, input, mul, neg, reduceSum, sub, type Tensor, takeAlongLast } from '../graph/builder.ts';
import { type HostTensor, hostTensor } from '../graph/runtime.ts';
import { forwardKlTopKLoss, reverseKlTopKLoss } from './distillation-loss.ts';
import {
  cispoLoss,
  crossEntropyLoss,
  entropySum,
  gspoLoss,
  importanceSamplingLoss,
  klK3Sum,
  ppoLoss,
  type TokenInputs,
} from './loss.ts';
import { type ColumnName, lossColumns, optionalColumns, type TrainingSequence } from './microbatch.ts';
import { isTeacherColumn, teacherColumns } from './teacher-tokens.ts';

/** What any loss of a policy may add: the weight of each row of `terms`; 0 or left out = not in the graph. */
interface PolicyTerms {
  readonly entropyBonus?: number;
  /** Needs `referenceLogprobs` in the data. */
  readonly klWeight?: number;
}

interface ClipRange {
  readonly clipLow: number;
  readonly clipHigh: number;
}

/** A loss and its settings; clip bounds mean what `loss.ts` says. `gspo` needs `sequenceLogRatio` in the data, those on top-k `teacher`. */
export type LossSpec =
  | ({ readonly name: 'cispo' | 'ppo' | 'gspo' } & ClipRange & PolicyTerms)
  | ({ readonly name: 'importanceSampling' } & PolicyTerms)
  | { readonly name: 'crossEntropy' | 'forwardKlTopK' | 'reverseKlTopK' };

type LossName = LossSpec['name'];
type TermName = keyof PolicyTerms;
type SettingName = keyof ClipRange | TermName;

/** What every loss may read: log-probabilities over the vocabulary [M, V], the entropy of each row [M, 1]. */
interface LossTokens extends TokenInputs {
  readonly distribution: Tensor;
  readonly entropies: Tensor;
}

interface LossRow {
  /** What the graph reads of a microbatch beside targets and weights. */
  readonly columns: readonly ColumnName[];
  /** Scalars that are fed, so that one compiled graph serves all values. */
  readonly settings: readonly SettingName[];
  /** Summed over the rows, shape []. */
  readonly build: (inputs: LossTokens & Tensors<string>, settings: Tensors<string>) => Tensor;
}

type Tensors<K extends string> = Readonly<Record<K, Tensor>>;

function row<C extends ColumnName, S extends SettingName>(
  columns: readonly C[],
  settings: readonly S[],
  build: (inputs: LossTokens & Tensors<C>, settings: Tensors<S>) => Tensor,
): LossRow {
  return { columns, settings, build: build as LossRow['build'] };
}

const clipRange = ['clipLow', 'clipHigh'] as const;
const sampled = ['samplingLogprobs', 'advantages'] as const;

const losses: { readonly [K in LossName]: LossRow & { readonly isPolicy: boolean } } = {
  cispo: { ...row(sampled, clipRange, cispoLoss), isPolicy: true },
  ppo: { ...row(sampled, clipRange, ppoLoss), isPolicy: true },
  gspo: { ...row(['sequenceLogRatios', 'advantages'], clipRange, gspoLoss), isPolicy: true },
  importanceSampling: { ...row(sampled, [], importanceSamplingLoss), isPolicy: true },
  crossEntropy: { ...row([], [], crossEntropyLoss), isPolicy: false },
  forwardKlTopK: { ...row(teacherColumns, [], forwardKlTopKLoss), isPolicy: false },
  reverseKlTopK: { ...row(teacherColumns, [], reverseKlTopKLoss), isPolicy: false },
};

/** `build` gives what `combine` joins to the loss. Entropy costs six passes over all logprobs, which its gradient reads. */
const terms: {
  readonly [K in TermName]: LossRow & { readonly combine: (loss: Tensor, term: Tensor) => Tensor };
} = {
  entropyBonus: {
    ...row([], ['entropyBonus'], (inputs, { entropyBonus }) => mul(entropyBonus, entropySum(inputs))),
    combine: sub,
  },
  klWeight: {
    ...row(['referenceLogprobs'], ['klWeight'], (inputs, { klWeight }) => mul(klWeight, klK3Sum(inputs))),
    combine: add,
  },
};
const termNames = Object.keys(terms) as readonly TermName[];
export const lossNames = Object.keys(losses) as readonly LossName[];
/** Those to which every term may be added. */
export const policyLossNames: readonly LossName[] = lossNames.filter((name) => losses[name].isPolicy);
export const policyTermNames: readonly string[] = termNames;

/** A loss as a graph: its name and the names of the terms it adds, `ppo` or `ppo+entropyBonus`. */
export type LossKind = LossName | `${LossName}+${string}`;

/** What a graph ends in: a loss, or logprobs alone. */
export type GraphKind = LossKind | 'logprobs';

function settingsOf({ name: _, ...settings }: LossSpec): Readonly<Partial<Record<SettingName, number>>> {
  return settings;
}

export function lossKind(loss: LossSpec): LossKind {
  const settings = settingsOf(loss);
  const present = termNames.filter((name) => settings[name]);
  return [loss.name, ...present].join('+') as LossKind;
}

function rowsOf(kind: LossKind): { readonly base: LossRow; readonly added: readonly (typeof terms)[TermName][] } {
  const [name, ...added] = kind.split('+') as [LossName, ...TermName[]];
  return { base: losses[name], added: added.map((term) => terms[term]) };
}

/** Throws ConfigError on an unknown loss or setting and on settings that are not finite; DataError where the data lack what it reads. */
export function checkLoss(loss: LossSpec, sequences: readonly TrainingSequence[]): void {
  const found = Object.hasOwn(losses, loss.name) ? losses[loss.name] : undefined;
  if (found === undefined) {
    throw new ConfigError(`loss: name must be one of ${Object.keys(losses).join(', ')}, got '${loss.name}'`);
  }
  const settings = settingsOf(loss);
  for (const name of found.settings) {
    if (!Object.hasOwn(settings, name)) throw new ConfigError(`loss: ${loss.name} needs ${name}, got none`);
  }
  const known: readonly string[] = [...found.settings, ...(found.isPolicy ? termNames : [])];
  for (const [name, value] of Object.entries(settings)) {
    if (!known.includes(name)) {
      throw new ConfigError(`loss: ${loss.name} takes ${known.join(', ') || 'no settings'}, got ${name}`);
    }
    if (value !== undefined && !Number.isFinite(value)) {
      throw new ConfigError(`loss: ${name} must be finite, got ${value}`);
    }
  }
  const kind = lossKind(loss);
  const { base, added } = rowsOf(kind);
  for (const column of [base, ...added].flatMap(({ columns }) => columns)) {
    const field = isTeacherColumn(column) ? 'teacher' : optionalColumns.find(({ name }) => name === column)?.field;
    const index = field === undefined ? -1 : sequences.findIndex((sequence) => sequence[field] === undefined);
    if (index >= 0) throw new DataError(`datum ${index}: ${kind} needs ${field}, got none`);
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
    loss: buildLoss(kind, { trainingLogprobs: logprobs, weights: column('weights'), entropies, distribution }),
    logprobs,
    entropy: reduceSum(mul(entropies, column('actions')), [0, 1]),
  };
}

function columnInput(name: ColumnName): Tensor {
  if (!isTeacherColumn(name)) return column(name);
  return input(name, ['M', 'K'], name === 'teacherIds' ? 'int64' : 'float32');
}

function buildLoss(kind: LossKind, tokens: LossTokens): Tensor {
  const build = ({ columns, settings, build: buildRow }: LossRow): Tensor => {
    const inputs = Object.fromEntries(columns.map((name) => [name, columnInput(name)]));
    return buildRow({ ...tokens, ...inputs }, Object.fromEntries(settings.map((name) => [name, input(name, [])])));
  };
  const { base, added } = rowsOf(kind);
  return added.reduce((loss, term) => term.combine(loss, build(term)), build(base));
}

/** What `lossOutputs` reads, from the feeds of a microbatch; the weight of a token is its own times `scale`. */
export function feedLoss(
  feeds: Readonly<Record<string, HostTensor>>,
  loss: LossSpec,
  scale: number,
): Record<string, HostTensor> {
  const actions = feeds.actions!;
  const tokenWeight = feeds.tokenWeights!.data as Float32Array;
  const weights = {
    ...actions,
    data: (actions.data as Float32Array).map((action, i) => action * tokenWeight[i]! * scale),
  };
  const { base, added } = rowsOf(lossKind(loss));
  const all: Record<string, HostTensor> = { ...feedTargets(feeds), actions, weights };
  const settings = settingsOf(loss);
  for (const { columns, settings: names } of [base, ...added]) {
    for (const name of columns) all[name] = feeds[name]!;
    for (const name of names) all[name] = hostTensor(Float32Array.of(settings[name]!), []);
  }
  return all;
}

/** The same where logprobs alone are wanted. */
export function feedTargets(feeds: Readonly<Record<string, HostTensor>>): Record<string, HostTensor> {
  return Object.fromEntries(Object.entries(feeds).filter(([name]) => !isLossColumn(name)));
}

function isLossColumn(name: string): boolean {
  return (lossColumns as readonly string[]).includes(name);
}
