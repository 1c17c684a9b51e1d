"""The cost of a decoded token, by the model of the paper."""

from collections.abc import Mapping

from transformers import PreTrainedModel

from anchored import Anchored, CPFuse, ModelPair, NoOpt, Pathwise, SafeOnly
from anchored.decode.rules.mixtures import grid
from anchored.decode.rules.rule import BOTH, Rule, StreamName

FLOPS_PER_LOGIT = 10
"""FLOPs of one pass over a logit, an exponential and the sums over it: an assumption."""
NUM_PASSES = 3
"""Passes of a projection over the vocabulary, statistics included. An assumption too."""


def token_cost(
    pair: ModelPair, rule: Rule, *, prompt_tokens: Mapping[StreamName, int], new_tokens: int
) -> dict[str, float]:
    """FLOPs that one generated token costs, by term; prompt of L, continuation of T tokens.

    prompt_tokens: by stream of the rule, with what is put before the prompt there.
    steps: 2 N, one forward, for every stream: 2 (N_r + N_s) of two models, 4 N_r of RCAD. prompt:
    2 N L / T a stream, the token's share of reading the prompt. debt: O(L V / T), its share of the
    prefix debt of both models, of rules that charge one. projection: O(I V), `num_passes` over a
    row of logits. Attention is left out. Source: paper, section on efficiency.
    """
    weights = {
        name: num_matrix_weights(pair.models[stream.model]) for name, stream in rule.streams.items()
    }
    per_row = FLOPS_PER_LOGIT * pair.vocab_size
    length = max(prompt_tokens.values())
    return {
        "steps": 2.0 * sum(weights.values()),
        "prompt": 2.0 * sum(weights[name] * prompt_tokens[name] for name in weights) / new_tokens,
        "debt": 2.0 * per_row * length / new_tokens if rule.charges_debt else 0.0,
        "projection": float(num_passes(rule) * per_row),
    }


def num_passes(rule: Rule) -> int:
    """Passes over a row of logits after the forwards of one token.

    A projection reads both rows NUM_PASSES times, NoOpt makes two of them. CP-Fuse normalizes both
    models, a mixture for each pair of weights of its grid, and p*. The others normalize what each
    stream gives, and p*.
    """
    if isinstance(rule, CPFuse):
        return len(BOTH) + len(grid(rule.grid_size)) ** 2 + 1
    if isinstance(rule, Anchored | NoOpt | Pathwise | SafeOnly):
        return len(BOTH) * NUM_PASSES * (2 if isinstance(rule, NoOpt) else 1)
    return len(rule.streams) + 1


def num_matrix_weights(model: PreTrainedModel) -> int:
    """Numbers that every token is multiplied with: all but the input embeddings' table.

    A table that is the output layer's weight too is multiplied with all the same.
    """
    (table,) = model.get_input_embeddings().parameters()
    output = model.get_output_embeddings()
    is_tied = output is not None and output.weight is table
    return sum(w.numel() for w in model.parameters() if is_tied or w is not table)
