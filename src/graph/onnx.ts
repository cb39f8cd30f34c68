/**
 * Graph → ONNX model bytes. Layer 1. Own protobuf writer for the few messages needed; source: onnx/onnx.proto.
 * Left out: external data, so a model stays below 2 GB; reading models.
 */

import { ConfigError } from '../core/errors.ts';
import type { Dtype, Graph, Tensor } from './builder.ts';
import { ops } from './ops.ts';
import { quantizeRows } from './quantize.ts';
import { formatShape, type Shape } from './sizes.ts';

type AttributeValue = number | string | readonly number[] | { readonly float: number };
export type OnnxAttributes = Readonly<Record<string, AttributeValue>>;

/** What an op's lowering writes to. Equal nodes are written once. */
export interface Emitter {
  /** Adds a node with one output and returns the name of its value. */
  readonly emit: (
    type: string,
    inputs: readonly string[],
    attributes?: OnnxAttributes,
    domain?: '' | 'com.microsoft',
  ) => string;
  /** A constant vector of int64. */
  readonly int64s: (values: readonly number[]) => string;
}

const irVersion = 10;
const opsetVersion = 21;
const elementTypes: Readonly<Record<Dtype | 'int8', number>> = { float32: 1, int8: 3, int64: 7, bool: 9 };
const encoder = new TextEncoder();

/** A protobuf message under construction: chunks are joined once, because weights may be large. */
class Message {
  readonly chunks: Uint8Array[] = [];
  length = 0;

  #push(chunk: Uint8Array): void {
    this.chunks.push(chunk);
    this.length += chunk.length;
  }

  #varint(value: number): void {
    const bytes: number[] = [];
    let rest = BigInt.asUintN(64, BigInt(value));
    while (rest > 127n) {
      bytes.push(Number(rest & 127n) | 128);
      rest >>= 7n;
    }
    this.#push(Uint8Array.from([...bytes, Number(rest)]));
  }

  int(field: number, value: number): this {
    this.#varint(field << 3);
    this.#varint(value);
    return this;
  }

  float(field: number, value: number): this {
    this.#varint((field << 3) | 5);
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setFloat32(0, value, true);
    this.#push(bytes);
    return this;
  }

  bytes(field: number, value: Uint8Array): this {
    this.#varint((field << 3) | 2);
    this.#varint(value.length);
    this.#push(value);
    return this;
  }

  string(field: number, value: string): this {
    return this.bytes(field, encoder.encode(value));
  }

  message(field: number, value: Message): this {
    this.#varint((field << 3) | 2);
    this.#varint(value.length);
    for (const chunk of value.chunks) this.#push(chunk);
    return this;
  }

  toBytes(): Uint8Array {
    const bytes = new Uint8Array(this.length);
    let at = 0;
    for (const chunk of this.chunks) {
      bytes.set(chunk, at);
      at += chunk.length;
    }
    return bytes;
  }
}

function attributeMessage(name: string, value: AttributeValue): Message {
  const message = new Message().string(1, name);
  if (typeof value === 'number') return message.int(3, value).int(20, 2);
  if (typeof value === 'string') return message.string(4, value).int(20, 3);
  if ('float' in value) return message.float(2, value.float).int(20, 1);
  for (const item of value) message.int(8, item);
  return message.int(20, 7);
}

function valueInfo(name: string, dtype: Dtype, shape: Shape): Message {
  const shapeMessage = new Message();
  for (const dim of shape) {
    shapeMessage.message(1, typeof dim === 'string' ? new Message().string(2, dim) : new Message().int(1, dim));
  }
  const tensorType = new Message().int(1, elementTypes[dtype]).message(2, shapeMessage);
  return new Message().string(1, name).message(2, new Message().message(1, tensorType));
}

type ConstantArray = Float32Array | Float64Array | BigInt64Array | Uint8Array;
/** Values of inputs that are to be constants of the model. */
export type GraphConstants = ReadonlyMap<string, ConstantArray>;

/** How products with constant weights `x · Wᵀ` are computed: exactly as the graph says, or with both factors rounded to 8 bits. */
export type Precision = 'float32' | 'int8';

function tensorMessage(
  name: string,
  dtype: Dtype | 'int8',
  sizes: readonly number[],
  data: ConstantArray | Int8Array,
): Message {
  const values = data instanceof Float64Array ? Float32Array.from(data) : data;
  const message = new Message();
  for (const size of sizes) message.int(1, size);
  return message
    .int(2, elementTypes[dtype])
    .string(8, name)
    .bytes(9, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
}

function fixedSizes(tensor: Tensor): number[] {
  return tensor.shape.map((dim) => {
    if (typeof dim === 'number') return dim;
    throw new ConfigError(`onnx: constant '${tensor.name}' must have fixed sizes, got ${formatShape(tensor.shape)}`);
  });
}

interface OnnxNode {
  readonly type: string;
  readonly inputs: readonly string[];
  readonly output: string;
  readonly attributes: OnnxAttributes;
  readonly domain: string;
}

function nodeMessage({ type, inputs, output, attributes, domain }: OnnxNode): Message {
  const message = new Message();
  for (const name of inputs) message.string(1, name);
  message.string(2, output).string(3, `${type}${output}`).string(4, type);
  for (const [name, value] of Object.entries(attributes)) message.message(5, attributeMessage(name, value));
  return domain === '' ? message : message.string(7, domain);
}

interface Writer {
  readonly nodes: OnnxNode[];
  readonly initializers: Message[];
  readonly emitter: Emitter;
}

function createWriter(): Writer {
  const nodes: OnnxNode[] = [];
  const initializers: Message[] = [];
  const written = new Map<string, string>();
  const once = (key: string, prefix: string, make: (name: string) => void): string => {
    const known = written.get(key);
    if (known !== undefined) return known;
    const name = `%${prefix}${written.size}`; // '%' keeps these apart from the names of inputs.
    written.set(key, name);
    make(name);
    return name;
  };
  const emitter: Emitter = {
    emit: (type, inputs, attributes = {}, domain = '') =>
      once(JSON.stringify([type, inputs, attributes, domain]), '', (output) =>
        nodes.push({ type, inputs, output, attributes, domain }),
      ),
    int64s: (values) =>
      once(JSON.stringify(values), 'k', (name) =>
        initializers.push(tensorMessage(name, 'int64', [values.length], BigInt64Array.from(values, BigInt))),
      ),
  };
  return { nodes, initializers, emitter };
}

/**
 * Names the values of the outputs. A node's value is renamed, which costs nothing; an input, or a value that is an
 * output already, is copied by Identity.
 */
function nameOutputs(nodes: readonly OnnxNode[], outputs: ReadonlyMap<string, string>): OnnxNode[] {
  const made = new Set(nodes.map(({ output }) => output));
  const renamed = new Map<string, string>();
  const copies: OnnxNode[] = [];
  for (const [name, value] of outputs) {
    if (made.has(value) && !renamed.has(value)) renamed.set(value, name);
    else copies.push({ type: 'Identity', inputs: [value], output: name, attributes: {}, domain: '' });
  }
  const rename = (value: string): string => renamed.get(value) ?? value;
  return [...nodes, ...copies].map((node) => ({
    ...node,
    inputs: node.inputs.map(rename),
    output: rename(node.output),
  }));
}

/** The name in the model of the graph's output `name`. */
export const outputValueName = (name: string): string => `${name}%`;

export interface OnnxModel {
  readonly bytes: Uint8Array;
  /** ONNX nodes written, for reports. */
  readonly nodeCount: number;
}

/** True for `x · Wᵀ` whose W is one of the constants. */
function isConstantProduct({ op, inputs, attributes }: Tensor, constants: GraphConstants): boolean {
  if (op !== 'matmul' || !attributes.transB || attributes.transA || attributes.alpha !== 1) return false;
  return inputs[0]!.shape.length === 2 && constants.has(inputs[1]!.name ?? '');
}

/** Keeps rows of zeros from being divided by 0. */
const SMALLEST_ROW = '%smallest';

/**
 * `x · Wᵀ` by `quantizeRows`. ONNX Runtime rounds all of x by one scale, in which a row of large values would drown the others (measured on
 * SmolLM2-135M: 0.8 nats a token), so each row is brought to a largest value of 1 before and back after.
 */
function emitRoundedProduct(emitter: Emitter, x: string, weight: string): string {
  const largest = emitter.emit('ReduceMax', [emitter.emit('Abs', [x]), emitter.int64s([-1])], { keepdims: 1 });
  const size = emitter.emit('Max', [largest, SMALLEST_ROW]);
  const factors = [emitter.emit('Div', [x, size]), `${weight}%int8`, `${weight}%scales`];
  return emitter.emit('Mul', [emitter.emit('DynamicQuantizeMatMul', factors, {}, 'com.microsoft'), size]);
}

/** Inputs named in `constants` become initializers; ONNX Runtime packs those that multiply, once per session. */
export function writeOnnxModel(
  graph: Graph,
  constants: GraphConstants = new Map(),
  precision: Precision = 'float32',
): OnnxModel {
  const { nodes, initializers, emitter } = createWriter();
  const values = new Map<number, string>();
  const graphMessage = new Message();
  const inputInfos: Message[] = [];
  const rounded = graph.nodes.filter((tensor) => precision === 'int8' && isConstantProduct(tensor, constants));
  const isRounded = new Set(rounded);
  const readAsIs = new Set(graph.nodes.filter((tensor) => !isRounded.has(tensor)).flatMap(({ inputs }) => inputs));
  if (rounded.length > 0) initializers.push(tensorMessage(SMALLEST_ROW, 'float32', [], Float32Array.of(1e-30)));
  for (const { name, shape } of new Set(rounded.map(({ inputs }) => inputs[1]!))) {
    const { data, scales } = quantizeRows(constants.get(name!) as Float32Array, shape as readonly [number, number]);
    initializers.push(tensorMessage(`${name}%int8`, 'int8', [...(shape as number[])].reverse(), data));
    initializers.push(tensorMessage(`${name}%scales`, 'float32', [scales.length], scales));
  }
  for (const tensor of graph.inputs) {
    const name = tensor.name!;
    const data = constants.get(name);
    values.set(tensor.id, name);
    if (data !== undefined && rounded.length > 0 && !readAsIs.has(tensor)) continue;
    if (data === undefined) inputInfos.push(valueInfo(name, tensor.dtype, tensor.shape));
    else initializers.push(tensorMessage(name, tensor.dtype, fixedSizes(tensor), data));
  }
  for (const tensor of graph.nodes) {
    if (tensor.op === 'input' || tensor.op === 'constant') {
      const name = `%c${values.size}`;
      values.set(tensor.id, name);
      initializers.push(tensorMessage(name, tensor.dtype, fixedSizes(tensor), tensor.data!));
      continue;
    }
    const inputs = tensor.inputs.map((item) => values.get(item.id)!);
    if (isRounded.has(tensor)) {
      values.set(tensor.id, emitRoundedProduct(emitter, inputs[0]!, inputs[1]!));
      continue;
    }
    values.set(tensor.id, ops[tensor.op].lower(emitter, inputs, tensor));
  }
  const outputs = Object.entries(graph.outputs);
  const named = nameOutputs(
    nodes,
    new Map(outputs.map(([name, tensor]) => [outputValueName(name), values.get(tensor.id)!])),
  );
  for (const item of named) graphMessage.message(1, nodeMessage(item));
  graphMessage.string(2, 'graph');
  for (const message of initializers) graphMessage.message(5, message);
  for (const message of inputInfos) graphMessage.message(11, message);
  for (const [name, { dtype, shape }] of outputs) {
    graphMessage.message(12, valueInfo(outputValueName(name), dtype, shape));
  }
  const model = new Message()
    .int(1, irVersion)
    .message(7, graphMessage)
    .message(8, new Message().string(1, '').int(2, opsetVersion))
    .message(8, new Message().string(1, 'com.microsoft').int(2, 1));
  return { bytes: model.toBytes(), nodeCount: named.length };
}
