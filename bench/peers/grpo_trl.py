"""TRL GRPOTrainer: whole steps (rollouts, random rewards, one optimizer step) of 8 groups of 8.

stdin: JSON {folder, threads, precision, sequences: [[id]] (one prompt a group), groupSize, newTokens, microbatch, warmUps, iterations, rank, alpha}
No KL term, completions of full length, LoRA on all linear layers. The tokenizer is a placeholder whose word "ti" is id i.
bfloat16: float32 weights under autocast for training, as TRL sets it up, or bfloat16 weights with `weights: bfloat16`.
"""
import contextlib
import json
import logging
import random
import sys
import tempfile
import time

import torch
from datasets import Dataset
from peft import LoraConfig
from report import print_report
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

logging.disable(logging.WARNING)
args = json.load(sys.stdin)
torch.set_num_threads(args["threads"])
torch.manual_seed(1)
rng = random.Random(1)
vocab_size = AutoConfig.from_pretrained(args["folder"]).vocab_size
words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab_size)}, unk_token="t0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
# No end token in the vocabulary's reach: every completion is full, and TRL then masks none of it.
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t0", padding_side="left")
prompts = [" ".join(f"t{id}" for id in ids) for ids in args["sequences"]]
groups, group_size, new_tokens = len(prompts), args["groupSize"], args["newTokens"]
completions = groups * group_size


class StepTimer(TrainerCallback):
    """A step's time begins before its rollouts and ends after the optimizer."""

    def __init__(self):
        self.times = []

    def on_step_begin(self, *_, **__):
        self.start = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_, **__):
        now = (time.perf_counter(), time.process_time())
        self.times.append({"seconds": now[0] - self.start[0], "cpuSeconds": now[1] - self.start[1]})


lengths = []
phases = {"generate": 0.0}


def reward(completion_ids, **_):
    lengths.extend(len(ids) for ids in completion_ids)
    return [rng.random() for _ in completion_ids]


with tempfile.TemporaryDirectory() as folder:
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=args["precision"] == "bfloat16",
        model_init_kwargs={"dtype": args.get("weights", "float32"), "attn_implementation": "sdpa"},
        per_device_train_batch_size=args["microbatch"],
        gradient_accumulation_steps=completions // args["microbatch"],
        gradient_checkpointing=False,
        num_generations=group_size,
        max_completion_length=new_tokens,
        generation_kwargs={"min_new_tokens": new_tokens},
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-5,
        max_steps=args["warmUps"] + args["iterations"],
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=1,
    )
    timer = StepTimer()
    with contextlib.redirect_stdout(sys.stderr):
        trainer = GRPOTrainer(
            model=args["folder"],
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts * (args["warmUps"] + args["iterations"])}),
            processing_class=tokenizer,
            callbacks=[timer],
            peft_config=LoraConfig(r=args["rank"], lora_alpha=args["alpha"], target_modules="all-linear", lora_dropout=0, task_type="CAUSAL_LM"),
        )
        generate = trainer._generate

        def timed_generate(*values, **named):
            start = time.perf_counter()
            result = generate(*values, **named)
            phases["generate"] = time.perf_counter() - start
            return result

        trainer._generate = timed_generate
        trainer.train()
if set(lengths) != {new_tokens}:
    raise SystemExit(f"TRL: every completion must have {new_tokens} tokens, got {sorted(set(lengths))}")
samples = timer.times[args["warmUps"] :]
print_report(samples, completions * new_tokens, ["trl", "torch", "transformers", "peft"], generateSeconds=phases["generate"], extra={**phases})
