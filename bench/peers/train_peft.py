"""PyTorch + PEFT: forward, masked loss, backward and AdamW of a LoRA adapter, one optimizer step a run.

stdin: JSON {folder, threads, precision: float32|bfloat16, sequences: [[id]], promptTokens, microbatch, warmUps, iterations, rank, alpha}
The better of eager code with PyTorch's scaled-dot-product attention; bfloat16 weights and activations, adapter in float32 as PEFT makes it.
"""
import json
import sys

import torch
from peft import LoraConfig, get_peft_model
from report import Timer, print_report
from transformers import AutoModelForCausalLM

args = json.load(sys.stdin)
torch.set_num_threads(args["threads"])
torch.manual_seed(1)
dtype = getattr(torch, args["precision"])
model = AutoModelForCausalLM.from_pretrained(args["folder"], dtype=dtype, attn_implementation="sdpa")
model = get_peft_model(
    model, LoraConfig(r=args["rank"], lora_alpha=args["alpha"], target_modules="all-linear", lora_dropout=0, task_type="CAUSAL_LM")
)
model.config.use_cache = False
model.train()
if args.get("checkpointing"):
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-5, betas=(0.9, 0.99), eps=1e-8, weight_decay=0)
ids = torch.tensor(args["sequences"])
prompt = args["promptTokens"]
count, length = ids.shape
advantages = torch.tensor([1.0 if index % 2 == 0 else -1.0 for index in range(count)])
sampling = -torch.log(torch.tensor(float(model.config.vocab_size)))
scale = 1 / (count * (length - prompt))


def step():
    for begin in range(0, count, args["microbatch"]):
        rows = ids[begin : begin + args["microbatch"]]
        # Logits only where a trained token is predicted, as TRL does it and as ours does.
        logits = model(input_ids=rows, logits_to_keep=length - prompt + 1).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(-1, rows[:, prompt:, None])[..., 0]
        ratio = torch.exp(logprobs - sampling).clamp(0, 6).detach()
        loss = -(ratio * advantages[begin : begin + args["microbatch"], None] * logprobs).sum() * scale
        loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


timer = Timer()
timer.measure(step, args["warmUps"], args["iterations"])
print_report(timer.samples, count * length, ["torch", "transformers", "peft"], trainedValues=sum(p.numel() for p in trained))
