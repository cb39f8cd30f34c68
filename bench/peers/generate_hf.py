"""Hugging Face generate: a batch of prompts of one length, sampled at temperature 1 to the full length.

stdin: JSON {folder, threads, precision, sequences: [[id]], newTokens, warmUps, iterations}
"""
import json
import sys

import torch
from report import Timer, print_report
from transformers import AutoModelForCausalLM

args = json.load(sys.stdin)
torch.set_num_threads(args["threads"])
torch.manual_seed(1)
model = AutoModelForCausalLM.from_pretrained(args["folder"], dtype=getattr(torch, args["precision"]), attn_implementation="sdpa").eval()
ids = torch.tensor(args["sequences"])
new_tokens = args["newTokens"]


def run():
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
    )
    if out.shape[1] != ids.shape[1] + new_tokens:
        raise SystemExit(f"generate: must give {new_tokens} tokens, got {out.shape[1] - ids.shape[1]}")


timer = Timer()
with torch.inference_mode():
    timer.measure(run, args["warmUps"], args["iterations"])
print_report(timer.samples, ids.shape[0] * new_tokens, ["torch", "transformers"])
