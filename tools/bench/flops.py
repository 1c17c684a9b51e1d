"""What a decoded token should cost, beside the clock."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from anchored import Anchored, Decoder, ModelPair, text_tables
from anchored.tools.commands.options import check_presence

from .options import BenchFlopsConfig
from .random_inputs import random_pair, random_prompts
from .timing import timed

FLOPS_PER_LOGIT = 10
"""Of one pass over a logit: an exponential and the sums over it. An assumption of the model."""
NUM_PASSES = 3
"""Passes of the projection over the vocabulary, statistics included. An assumption too."""
WIDTH = 12
TITLES = ("prompt", "new", "steps", "prompt/T", "debt/T", "projection", "GFLOP", "ms", "GFLOP/s")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """FLOPs that one generated token costs by the model; source: paper, section on efficiency."""

    steps: float
    """2 (N_r + N_s): one forward of each model."""
    prompt: float
    """2 (N_r + N_s) L / T: the token's share of reading the prompt."""
    debt: float
    """O(L V / T): the token's share of the prefix debt, both models."""
    projection: float
    """O(I V): the projection onto the budget, I passes over both rows of logits."""

    @property
    def total(self) -> float:
        return self.steps + self.prompt + self.debt + self.projection


def token_cost(pair: ModelPair, *, prompt_tokens: int, new_tokens: int) -> TokenCost:
    """The model for a prompt of L and a continuation of T tokens; attention is left out."""
    weights = sum(num_matrix_weights(model) for model in pair.models.values())
    per_logit = 2 * FLOPS_PER_LOGIT * pair.vocab_size
    return TokenCost(
        steps=2.0 * weights,
        prompt=2.0 * weights * prompt_tokens / new_tokens,
        debt=per_logit * prompt_tokens / new_tokens,
        projection=float(NUM_PASSES * per_logit),
    )


def num_matrix_weights(model: PreTrainedModel) -> int:
    """Parameters that every token is multiplied with: all but the input embeddings' table."""
    total = sum(parameter.numel() for parameter in model.parameters())
    (table,) = model.get_input_embeddings().parameters()
    return total - table.numel()


@torch.inference_mode()
def run(config: BenchFlopsConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    longest = max(config.prompt_tokens) + max(config.new_tokens)
    pair = random_pair(
        config.safe,
        config.risky,
        vocab_size=config.vocab_size,
        context_length=longest,
        dtype=getattr(torch, config.dtype),
        device=config.device,
    )
    print(
        f"{config.safe} + {config.risky}, V = {config.vocab_size}, {config.dtype} on "
        f"{config.device}, torch {torch.__version__}, batch 1: GFLOP a token by the model, "
        f"milliseconds a token by the clock"
    )
    print(text_tables.line(TITLES, WIDTH))
    for prompt_tokens in config.prompt_tokens:
        for new_tokens in config.new_tokens:
            cells = _cells(pair, config, prompt_tokens, new_tokens)
            print(text_tables.line(cells, WIDTH), flush=True)
    return 0


def _cells(
    pair: ModelPair, config: BenchFlopsConfig, prompt_tokens: int, new_tokens: int
) -> tuple[str, ...]:
    decoder = Decoder(pair, Anchored(k=config.k))
    prompts = random_prompts(1, prompt_tokens, pair.vocab_size)
    decoder.generate(prompts, max_new_tokens=new_tokens)
    seconds, (result,) = timed(
        lambda: decoder.generate(prompts, max_new_tokens=new_tokens), device=config.device
    )
    num_tokens = len(result.token_ids)
    cost = token_cost(pair, prompt_tokens=prompt_tokens, new_tokens=num_tokens)
    terms = (cost.steps, cost.prompt, cost.debt, cost.projection, cost.total)
    speed = cost.total * num_tokens / seconds
    return (
        str(prompt_tokens),
        str(num_tokens),
        *(f"{flops / 1e9:.4f}" for flops in terms),
        f"{1e3 * seconds / num_tokens:.2f}",
        f"{speed / 1e9:.2f}",
    )
