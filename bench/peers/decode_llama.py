"""Native llama.cpp (built from source by llama-cpp-python): batched decode through llama_decode, one id a sequence a pass.

stdin: JSON {gguf, threads, sequences: [[id]], newTokens, warmUps, iterations, flash, cacheType}
Prefill is timed apart. Each pass: llama_decode, then one temperature-1 draw a sequence with the logprob of the drawn id, from its logits
(numpy; in `sampleSeconds`), because ours does that work as well. `decodeSeconds` is llama_decode alone.
"""
import ctypes
import json
import sys
import time

import llama_cpp as llama
import numpy as np
from report import print_report

args = json.load(sys.stdin)
quiet = llama.llama_log_callback(lambda level, text, data: None)
llama.llama_log_set(quiet, ctypes.c_void_p(0))
llama.llama_backend_init()
model_params = llama.llama_model_default_params()
model_params.n_gpu_layers = 0
model = llama.llama_model_load_from_file(args["gguf"].encode(), model_params)
if not model:
    raise SystemExit(f"llama.cpp: cannot load {args['gguf']}")
vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
prompts, new_tokens = args["sequences"], args["newTokens"]
count = len(prompts)
context_params = llama.llama_context_default_params()
context_params.n_ctx = count * (len(prompts[0]) + new_tokens)
context_params.n_batch = 2048
context_params.n_ubatch = args.get("ubatch", 512)
context_params.n_seq_max = count
context_params.n_threads = context_params.n_threads_batch = args["threads"]
context_params.kv_unified = bool(args.get("unified", False))
context_params.flash_attn_type = {"on": 1, "off": 0}[args["flash"]]
kinds = {"f32": llama.GGML_TYPE_F32, "f16": llama.GGML_TYPE_F16}
context_params.type_k = context_params.type_v = kinds[args["cacheType"]]
context = llama.llama_init_from_model(model, context_params)
if not context:
    raise SystemExit("llama.cpp: cannot create the context")
memory = llama.llama_get_memory(context)
batch = llama.llama_batch_init(context_params.n_batch, 0, 1)
rng = np.random.default_rng(1)


def fill(entries):
    batch.n_tokens = len(entries)
    for i, (token, position, sequence, has_logits) in enumerate(entries):
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = has_logits


def decode():
    code = llama.llama_decode(context, batch)
    if code != 0:
        raise SystemExit(f"llama_decode: returned {code}")
    llama.llama_synchronize(context)


def draw(rows):
    logits = np.ctypeslib.as_array(llama.llama_get_logits(context), shape=(rows, vocab_size))
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    total = np.cumsum(shifted, -1, dtype=np.float32)
    ids = np.minimum((total < rng.random((rows, 1), dtype=np.float32) * total[:, -1:]).sum(-1), vocab_size - 1)
    np.log(shifted[np.arange(rows), ids] / total[:, -1])
    return ids.tolist()


def run():
    llama.llama_memory_clear(memory, True)
    start, cpu = time.perf_counter(), time.process_time()
    last = [0] * count
    per_pass = max(1, context_params.n_batch // len(prompts[0]))
    for begin in range(0, count, per_pass):
        some = range(begin, min(count, begin + per_pass))
        fill([(id, t, s, t == len(prompts[s]) - 1) for s in some for t, id in enumerate(prompts[s])])
        decode()
        for sequence, id in zip(some, draw(len(some))):
            last[sequence] = id
    prefill = time.perf_counter() - start
    decoding = sampling = 0.0
    for step in range(new_tokens - 1):
        fill([(last[s], len(prompts[s]) + step, s, True) for s in range(count)])
        before = time.perf_counter()
        decode()
        between = time.perf_counter()
        last = draw(count)
        decoding += between - before
        sampling += time.perf_counter() - between
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds, "cpuSeconds": time.process_time() - cpu, "prefillSeconds": prefill,
        "decodeSeconds": decoding, "sampleSeconds": sampling,
    }  # fmt: skip


for _ in range(args["warmUps"]):
    run()
samples = [run() for _ in range(args["iterations"])]
print_report(samples, count * new_tokens, ["llama-cpp-python"], systemInfo=llama.llama_print_system_info().decode())
