"""What a decoded token should cost, beside the clock."""

from itertools import chain, product

import torch
from transformers import PreTrainedModel

from anchored import Anchored, Decoder, ModelPair, text_tables
from anchored.tools.commands.options import check_presence

from .options import BenchFlopsConfig
from .random_inputs import configured_pair, matrix_weights, random_prompts
from .timing import timed

FLOPS_PER_LOGIT = 10
"""Of one pass over a logit: an exponential and the sums over it. An assumption of the model."""
NUM_PASSES = 3
"""Passes of the projection over the vocabulary, statistics included. An assumption too."""
WIDTH = 12
TITLES = ("prompt", "new", "steps", "prompt/T", "debt/T", "projection", "GFLOP", "ms", "GFLOP/s")


def token_cost(pair: ModelPair, *, prompt_tokens: int, new_tokens: int) -> dict[str, float]:
    """FLOPs that one generated token costs, by term; prompt of L, continuation of T tokens.

    steps: 2 (N_r + N_s), one forward of each model. prompt: 2 (N_r + N_s) L / T, the token's share
    of reading the prompt. debt: O(L V / T), its share of the prefix debt of both models.
    projection: O(I V), I passes over both rows of logits. Attention is left out.
    Source: paper, section on efficiency.
    """
    weights = sum(num_matrix_weights(model) for model in pair.models.values())
    per_logit = 2 * FLOPS_PER_LOGIT * pair.vocab_size
    return {
        "steps": 2.0 * weights,
        "prompt": 2.0 * weights * prompt_tokens / new_tokens,
        "debt": per_logit * prompt_tokens / new_tokens,
        "projection": float(NUM_PASSES * per_logit),
    }


def num_matrix_weights(model: PreTrainedModel) -> int:
    """Numbers that every token is multiplied with."""
    return sum(weight.numel() for weight in matrix_weights(model))


@torch.inference_mode()
def run(config: BenchFlopsConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    pair = configured_pair(config, max(config.prompt_tokens) + max(config.new_tokens))
    print(
        f"{config}, torch {torch.__version__}, batch 1: GFLOP a token by the model, milliseconds a "
        "token by the clock"
    )
    decoder = Decoder(pair, Anchored(k=config.k))
    lengths = product(config.prompt_tokens, config.new_tokens)
    rows = (_cells(decoder, config.device, *pair_of_lengths) for pair_of_lengths in lengths)
    text_tables.print_lines(chain([TITLES], rows), WIDTH)
    return 0


def _cells(decoder: Decoder, device: str, prompt_tokens: int, new_tokens: int) -> tuple[str, ...]:
    prompts = random_prompts(1, prompt_tokens, decoder.pair.vocab_size)
    decoder.generate(prompts, max_new_tokens=new_tokens)
    seconds, (result,) = timed(
        lambda: decoder.generate(prompts, max_new_tokens=new_tokens), device=device
    )
    num_tokens = len(result.token_ids)
    cost = token_cost(decoder.pair, prompt_tokens=prompt_tokens, new_tokens=num_tokens)
    total = sum(cost.values())
    return (
        str(prompt_tokens),
        str(num_tokens),
        *(f"{flops / 1e9:.4f}" for flops in (*cost.values(), total)),
        f"{1e3 * seconds / num_tokens:.2f}",
        f"{total * num_tokens / seconds / 1e9:.2f}",
    )
