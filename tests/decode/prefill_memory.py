"""Peak memory of two prefills, in a process of their own: python prefill_memory.py"""

import re
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anchored.decode.models.capabilities import row_attention
from anchored.decode.models.row_stream import ModelRunner, RowStream
from anchored.decode.rules.budget import log_likelihood_ratios, prefix_debt

NUM_TOKENS, VOCAB_SIZE = 4096, 128256


def status_mib(field: str) -> float:
    kib = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib[1]) / 1024


def plain(runner: ModelRunner, token_ids: list[int]) -> None:
    with torch.inference_mode():
        runner.model(torch.tensor([token_ids]), use_cache=True, logits_to_keep=1)


def debt(runner: ModelRunner, token_ids: list[int]) -> None:
    attention = row_attention(runner.model)
    stream = RowStream(runner, attention, num_rows=1, max_length=NUM_TOKENS)
    log_probs = stream.read([token_ids], [0]).token_log_probs[0]
    prefix_debt(log_likelihood_ratios(log_probs, log_probs - 1.0))


def main() -> None:
    """Print for each prefill the memory before it and the peak within it, in MiB."""
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=NUM_TOKENS,
        tie_word_embeddings=True,
    )
    # Made once a pair, with the packed copies of its layers; the first prefill makes them.
    runner = ModelRunner(LlamaForCausalLM(config).eval(), VOCAB_SIZE)
    for prefill in (debt, plain):
        prefill(runner, [7, 8])
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (proc(5))
        before = status_mib("VmRSS")
        prefill(runner, [i * 31 % VOCAB_SIZE for i in range(NUM_TOKENS)])
        print(before, status_mib("VmHWM"))


if __name__ == "__main__":
    main()
