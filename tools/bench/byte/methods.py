"""Decoding methods at byte level: what generates, and how many positions its models computed."""

from collections.abc import Mapping, Sequence
from typing import Any

from anchored import Decoder, Generation, ModelPair, PromptCache
from anchored.decode.rules.rule import Rule, StreamName

from ..flops import num_matrix_weights
from ..methods import bench_rules
from ..options import BenchByteConfig
from .engine import as_model_pair
from .pair import BytePair

BASELINE = "risky_only"
AT_TOKENS_ONLY = ("token_swap",)
"""Rules that know words as tokens."""


class MethodAtBytes:
    """One method and one prompt."""

    def __init__(self, decoder: Decoder, prompt: Sequence[int], passage: str) -> None:
        """passage: for rules that read one before the prompt."""
        self._decoder, self._prompt = decoder, list(prompt)
        readings = decoder.rule.streams.values()
        takes_passage = any(reading.takes_passage for reading in readings)
        self._asked: dict[str, Any] = {"passages": passage} if takes_passage else {}
        self._results: dict[int, Generation] = {}

    def generate(self, num_bytes: int) -> int:
        """Generate at most so many bytes; how many it were."""
        (result,) = self._decoder.generate([self._prompt], max_new_bytes=num_bytes, **self._asked)
        self._results[num_bytes] = result
        return len(result.token_ids)

    def cost_cells(self) -> tuple[str, ...]:
        """Of generations that have been made: GFLOP of one forward of every stream, token positions
        computed a byte behind the prompt, all streams together, and what these cost in GFLOP."""
        short, long = (self._results[length] for length in sorted(self._results))
        num_bytes = len(long.token_ids) - len(short.token_ids)
        before, after = (_positions(result) for result in (short, long))
        positions = {name: (after[name] - before[name]) / num_bytes for name in after}
        gflops = {name: self._forward_gflop(name) for name in positions}
        total = sum(gflops[name] * count for name, count in positions.items())
        figures = (sum(gflops.values()), sum(positions.values()), total)
        return tuple(f"{figure:.4f}" for figure in figures)

    def _forward_gflop(self, name: StreamName) -> float:
        """2 N of the model behind a stream. Source: paper, section on efficiency."""
        model = self._decoder.pair.models[self._decoder.rule.streams[name].model]
        return 2e-9 * num_matrix_weights(model)


def _positions(result: Generation) -> dict[StreamName, float]:
    """By stream: token positions that its model computed, the prompt's included."""
    return {name: work["num_nodes"] for name, work in result.ledger.footer.work.items()}


def methods_at_bytes(
    pair: BytePair, prompt: Sequence[int], names: Sequence[str], config: BenchByteConfig
) -> Mapping[str, MethodAtBytes]:
    """The named methods but for those that tokens alone know, the risky model alone first."""
    models = as_model_pair(pair)
    passage = pair.held_out[-config.passage_bytes :].decode(errors="ignore")
    rules = bench_rules(k=config.k, horizon=config.new_bytes, passages=[passage], words=["the"])
    ordered = [BASELINE, *(name for name in names if name not in (BASELINE, *AT_TOKENS_ONLY))]
    return {name: MethodAtBytes(_decoder(models, rules[name]), prompt, passage) for name in ordered}


def _decoder(pair: ModelPair, rule: Rule) -> Decoder:
    # Prompts are read anew by every call: a kept one would have no time to the first byte.
    return Decoder(pair, rule, level="byte", prompt_cache=PromptCache(max_bytes=0))
