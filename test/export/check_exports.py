"""What transformers and PEFT say of exports. One JSON argument; the last line of the output is one JSON answer (transformers.test.ts)."""
import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def largest(pairs):
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def main():
    request = json.loads(sys.argv[1])
    AutoTokenizer.from_pretrained(request["merged"])
    merged = load(request["merged"])
    policy = PeftModel.from_pretrained(load(request["base"]), request["adapter"]).eval()
    prompt, greedy = request["promptIds"], request["greedyIds"]
    ids = torch.tensor([prompt + greedy])
    with torch.no_grad():
        logits = merged(ids).logits[0]
        adapted = policy(ids).logits[0]
        options = dict(do_sample=False, max_new_tokens=len(greedy), min_new_tokens=len(greedy), eos_token_id=None, pad_token_id=0)
        generated = policy.generate(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **options)
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    places = torch.arange(len(prompt) - 1, len(prompt) + len(greedy) - 1)
    together = policy.merge_and_unload().state_dict()
    answer = dict(
        greedyIds=generated[0, len(prompt):].tolist(),
        logprobs=logprobs[places, torch.tensor(greedy)].tolist(),
        logitDifference=largest([(logits, adapted)]),
        weightDifference=largest((tensor, together[name]) for name, tensor in merged.state_dict().items()),
    )
    print(json.dumps(answer))


main()
