/**
 * The parts of a decoder as graphs of their own, forward and backward: embedding, the two sides of a layer around attention, attention,
 * and the head with its loss. Layer 3. All parts come from the decoder's own functions, so that their bits are those of the whole.
 */
import type { DecoderConfig } from '../formats/hf-config.ts';
import { gradients } from '../graph/backward.ts';
import { type PartGraphs, splitPart } from '../graph/backward-part.ts';
import { type Graph, input, makeGraph, type Tensor } from '../graph/builder.ts';
import { multiplyDims } from '../graph/sizes.ts';
import {
  attend,
  type DecoderTensors,
  declareDecoder,
  declareInputs,
  decoderLogprobs,
  embedTokens,
  finishLayer,
  projectAttention,
} from '../nn/decoder.ts';
import type { LoraSpec } from '../nn/lora.ts';
import { column, type GraphKind, lossOutputs, targetLogprobs } from './loss-graph.ts';

export interface GraphsOptions {
  readonly config: DecoderConfig;
  readonly lora: LoraSpec | null;
  readonly trained: ReadonlySet<string>;
  /** Whether the forward pass keeps results of products for the backward pass. */
  readonly isKeeping: boolean;
}

/** Results of products with weights are dear, everything else is computed again. */
function isDear({ op, shape }: Tensor): boolean {
  const width = shape[1];
  const isWide = shape.length === 2 && typeof width === 'number' && width > 64;
  return isWide && (op === 'matmulAdd' || op === 'matmul' || op === 'add');
}

/** The trained weights that outputs read, by name. */
function trainedOf(outputs: Readonly<Record<string, Tensor>>, trained: ReadonlySet<string>): [string, Tensor][] {
  const { inputs } = makeGraph(outputs);
  return inputs.filter(({ name }) => trained.has(name!)).map((tensor) => [tensor.name!, tensor]);
}

function residual({ config }: DecoderTensors): Tensor {
  return input('x', ['B*T', config.width]);
}

function split(
  outputs: Readonly<Record<string, Tensor>>,
  inputs: readonly Tensor[],
  { trained, isKeeping }: GraphsOptions,
): PartGraphs {
  const wrt = new Map([
    ...inputs.map((tensor): [string, Tensor] => [tensor.name!, tensor]),
    ...trainedOf(outputs, trained),
  ]);
  return splitPart(outputs, wrt, (tensor) => isKeeping && isDear(tensor));
}

/** x of the first layer; a gradient only if the embedding is trained. */
export function embedGraphs(options: GraphsOptions): PartGraphs {
  const model = declareDecoder(options.config, options.lora);
  return split({ x: embedTokens(model, declareInputs(options.config, 'T').tokenIds) }, [], options);
}

/** x → queries, keys, values of `layer`. `wantsInput`: whether anything before the layer is trained. */
export function projectGraphs(layer: number, wantsInput: boolean, options: GraphsOptions): PartGraphs {
  const model = declareDecoder(options.config, options.lora);
  const x = residual(model);
  const { queries, keys, values } = projectAttention(model, layer, x, declareInputs(options.config, 'T'));
  return split({ queries, keys, values }, wantsInput ? [x] : [], options);
}

/** queries, keys, values, mask → mixed. */
export function attendGraphs(options: GraphsOptions): PartGraphs {
  const { config } = options;
  const queries = input('queries', ['B', config.heads, 'T', config.headSize]);
  const keys = input('keys', ['B', config.kvHeads, 'S', config.headSize]);
  const values = input('values', ['B', config.kvHeads, 'S', config.headSize]);
  const mixed = attend(config, queries, keys, values, declareInputs(config, 'S').mask);
  return split({ mixed }, [queries, keys, values], options);
}

/** x, mixed → x of the next layer. */
export function finishGraphs(layer: number, options: GraphsOptions): PartGraphs {
  const { config } = options;
  const model = declareDecoder(config, options.lora);
  const x = residual(model);
  const queryRows = multiplyDims([config.heads / config.kvHeads, 'T']);
  const mixed = input('mixed', ['B', config.kvHeads, queryRows, config.headSize]);
  return split({ out: finishLayer(model, layer, x, mixed) }, [x, mixed], options);
}

/** x [M, D] → what `kind` asks for, and with a loss the gradients `d.x` and of the trained weights. */
export function headGraph(kind: GraphKind, { config, lora, trained }: GraphsOptions): Graph {
  const model = declareDecoder(config, lora);
  const x = input('x', ['M', config.width]);
  const distribution = decoderLogprobs(model, x, input('logitRows', ['M'], 'int64'), column('inverseTemperatures'));
  if (kind === 'logprobs') return makeGraph({ logprobs: targetLogprobs(distribution) });
  const outputs: Record<string, Tensor> = lossOutputs(kind, distribution);
  const wrt: [string, Tensor][] = [['x', x], ...trainedOf({ loss: outputs.loss! }, trained)];
  const found = gradients(
    outputs.loss!,
    wrt.map(([, tensor]) => tensor),
  );
  for (const [i, [name]] of wrt.entries()) outputs[`d.${name}`] = found[i]!;
  return makeGraph(outputs);
}
