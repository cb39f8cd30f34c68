"""Writes a Hugging Face folder of a llama or qwen3 decoder as GGUF, then quantises it with llama.cpp's own function.

usage: write_gguf.py FOLDER OUT_PREFIX TYPE...      TYPE: f32 bf16 q8_0 q4_0; files OUT_PREFIX-TYPE.gguf, kept if present
The vocabulary is a placeholder (t0, t1, ...): the peers are fed token ids.
"""
import ctypes
import json
import os
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
GLOBALS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in GLOBALS:
        return GLOBALS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def interleave(matrix, heads):
    """llama in GGUF rotates neighbouring rows of a head, Hugging Face rows half a head apart."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_f32(folder, path):
    config = json.load(open(os.path.join(folder, "config.json")))
    arch, vocab = config["model_type"], config["vocab_size"]
    if arch not in ("llama", "qwen3"):
        raise SystemExit(f"model_type: must be llama or qwen3, got {arch}")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(vocab)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
        tensor = tensor.astype(np.float32)
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = interleave(tensor, heads if ".q_proj." in name else kv_heads)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source, path, kind):
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = {"bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16, "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
    params.nthread = os.cpu_count()
    code = llama_cpp.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(params))
    if code != 0:
        raise SystemExit(f"llama_model_quantize {kind}: returned {code}")


def main():
    folder, prefix, *kinds = sys.argv[1:]
    f32 = f"{prefix}-f32.gguf"
    for kind in ["f32", *kinds]:
        path = f"{prefix}-{kind}.gguf"
        if os.path.exists(path):
            continue
        part = f"{path}.part"
        write_f32(folder, part) if kind == "f32" else quantize(f32, part, kind)
        os.rename(part, path)


if __name__ == "__main__":
    main()
