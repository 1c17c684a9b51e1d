"""Every decoding method in the paper's table of efficiency, at the level of tokens or bytes."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch

from anchored import (
    RCAD,
    Anchored,
    ColdStart,
    CPFuse,
    Decoder,
    Generation,
    GlobalSwitch,
    MemFree,
    NoOpt,
    PromptCache,
    RiskyOnly,
    SafeOnly,
    System,
    TokenSwap,
    text_tables,
)
from anchored.decode.engine.prompts import prompts_by_stream
from anchored.decode.pair_options import check_presence
from anchored.decode.rules.rule import Rule, takes_passage

from .baselines import WARPERS, Generate, transformers_alone
from .flops import num_matrix_weights, token_cost
from .inputs import BenchInputs
from .options import BenchMethodsConfig, method_names
from .timing import CLOCKS, WALL, Clock, deviation, timed, times_baseline

RCAD_ALPHA = 0.5
BEFORE_PROMPT = 512
"""Positions of random models for what rules put before a prompt: a passage or a system prompt."""
RISKY_ALONE = "transformers, risky alone"
RISKY_ALONE_AT_BYTES = "risky_only"
"""transformers knows no bytes: there the risky model alone is a rule of ours."""
AT_TOKENS_ONLY = ("token_swap",)
"""Rules that know words as tokens."""
WIDTH, NAME_WIDTH = 13, 26
SPEED_TITLES = ("first ms", "symbols/s", "error", "slowdown", "error")
TOKEN_TITLES = ("step GFLOP", "all GFLOP")
BYTE_TITLES = ("step GFLOP", "positions", "GFLOP")


def bench_rules(
    *, k: float, horizon: int, passages: Sequence[str], words: Sequence[str]
) -> dict[str, Rule]:
    """The rules by the names in `options.METHODS`.

    Those without a budget run without the safe model unless they read it, as their authors run
    them. k: nats a symbol. horizon: symbols of a text. passages: whose n-grams MemFree blocks.
    words: those that TokenSwap swaps.
    """
    return {
        "safe_only": SafeOnly(),
        "risky_only": RiskyOnly(compared=False),
        "system": System(compared=False),
        "memfree": MemFree(passages=list(passages), compared=False),
        "rcad": RCAD(alpha=RCAD_ALPHA, compared=False),
        "cp_fuse": CPFuse(),
        "token_swap": TokenSwap(words=list(words)),
        "anchored": Anchored(k=k, debt="none"),
        "anchored_debt": Anchored(k=k),
        "anchored_inf": Anchored(k=k, debt="none", divergence="max"),
        "no_opt": NoOpt(k=k, debt="none"),
        "cold_start": ColdStart(k=k),
        "global_switch": GlobalSwitch(K=k * horizon),
    }


@dataclass(frozen=True, slots=True)
class Speed:
    """One method's speed in several runs."""

    first_s: list[float] = field(default_factory=list)
    """Seconds to the first symbol of every request: the prompts and one step."""
    per_s: list[float] = field(default_factory=list)
    """Symbols a second after the first ones, all requests together."""

    @property
    def first_ms(self) -> float:
        """The median."""
        return 1e3 * statistics.median(self.first_s)

    @property
    def mean(self) -> float:
        """Mean symbols a second."""
        return statistics.mean(self.per_s)

    @property
    def error(self) -> float:
        """Sample standard deviation of that over the runs; nan of one run."""
        return deviation(self.per_s)

    def slowdown(self, baseline: "Speed") -> tuple[float, float]:
        """(how many times as fast the baseline is in the same run, the deviation of that)."""
        return times_baseline(baseline.per_s, self.per_s)


def speeds(
    generates: Mapping[str, Callable[[int], int]],
    length: int,
    *,
    runs: int,
    clock: Clock = WALL,
    device: str = "cpu",
) -> dict[str, Speed]:
    """Speeds of methods that take turns in every run, after a warm-up of each.

    generates: make that many symbols a prompt, and return how many these are altogether. Raises
    ValueError where all texts end with their first symbol.
    Source: paper, section on efficiency: (N_T - N_1) / (t_T - t_1).
    """
    for generate in generates.values():
        generate(length)
    measured = {name: Speed() for name in generates}
    for _ in range(runs):
        for name, generate in generates.items():
            (one_s, one), (whole_s, whole) = (
                timed(partial(generate, number), clock, device=device) for number in (1, length)
            )
            if whole <= one:
                raise ValueError(f"{name} ends its texts at once: there is no speed to measure")
            measured[name].first_s.append(one_s)
            measured[name].per_s.append((whole - one) / (whole_s - one_s))
    return measured


def decoder_generate(
    decoder: Decoder,
    prompts: list[list[int]],
    passages: list[str],
    results: dict[int, list[Generation]] | None = None,
) -> Generate:
    """What `speeds` times of a decoder. results: takes the generations, by their length."""
    asked: dict[str, Any] = {"passages": passages} if takes_passage(decoder.rule) else {}
    is_byte = decoder.level.name == "byte"
    asked |= {} if is_byte else WARPERS
    length_name = "max_new_bytes" if is_byte else "max_new_tokens"

    def generate(length: int) -> int:
        generations = decoder.generate(prompts, **asked, **dict[str, Any]({length_name: length}))
        if results is not None:
            results[length] = generations
        return sum(len(generation.token_ids) for generation in generations)

    return generate


@torch.inference_mode()
def run(config: BenchMethodsConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    longest = config.prompt_length + config.new_length + BEFORE_PROMPT
    inputs = BenchInputs.of(config, longest)
    is_byte = config.level == "byte"
    alone = RISKY_ALONE_AT_BYTES if is_byte else RISKY_ALONE
    print(
        f"{config} ({torch.get_num_threads()} threads), torch {torch.__version__}, batch "
        f"{config.batch_size}, {config.prompt_length} + {config.new_length} {config.level}s, "
        f"k = {config.k}, {config.runs} runs; slowdown: the speed of {alone} over this one's"
    )
    titles = ("", *SPEED_TITLES, *(BYTE_TITLES if is_byte else TOKEN_TITLES))
    table = _byte_rows(inputs, config) if is_byte else _token_rows(inputs, config)
    text_tables.print_lines(chain([titles], table), WIDTH, name_width=NAME_WIDTH)
    return 0


def _token_rows(inputs: BenchInputs, config: BenchMethodsConfig) -> Iterator[tuple[str, ...]]:
    """The risky model alone, then the methods, with the FLOPs that a token should cost."""
    prompts = inputs.prompts(config.batch_size, config.prompt_length)
    decoders, passages = _decoders(inputs, config, method_names(config.methods))
    generates = {RISKY_ALONE: transformers_alone(inputs.pair.risky, prompts)}
    generates |= {
        name: decoder_generate(decoder, prompts, passages) for name, decoder in decoders.items()
    }
    alone = {"risky": config.prompt_length}
    costs = {RISKY_ALONE: _token_cells(inputs, RiskyOnly(compared=False), alone, config)}
    for name, decoder in decoders.items():
        passage = passages[0] if takes_passage(decoder.rule) else None
        read = prompts_by_stream(decoder.level, decoder.rule, prompts[0], passage)
        lengths = {stream: len(read.get(stream, prompts[0])) for stream in decoder.rule.streams}
        costs[name] = _token_cells(inputs, decoder.rule, lengths, config)
    for name, cells in _speed_cells(generates, config):
        yield (name, *cells, *costs[name])


def _token_cells(
    inputs: BenchInputs, rule: Rule, prompt_tokens: dict[str, int], config: BenchMethodsConfig
) -> tuple[str, str]:
    """GFLOP of a step's forwards, and of all that a token takes."""
    cost = token_cost(inputs.pair, rule, prompt_tokens=prompt_tokens, new_tokens=config.new_length)
    return f"{cost['steps'] / 1e9:.3f}", f"{sum(cost.values()) / 1e9:.3f}"


def _byte_rows(inputs: BenchInputs, config: BenchMethodsConfig) -> Iterator[tuple[str, ...]]:
    """The methods but for those that tokens alone know, the risky model alone first."""
    others = method_names(config.methods)
    names = [RISKY_ALONE_AT_BYTES]
    names += [name for name in others if name not in (*names, *AT_TOKENS_ONLY)]
    prompts = inputs.byte_prompts(config.batch_size, config.prompt_length)
    decoders, passages = _decoders(inputs, config, names)
    results: dict[str, dict[int, list[Generation]]] = {name: {} for name in names}
    generates = {
        name: decoder_generate(decoder, prompts, passages, results[name])
        for name, decoder in decoders.items()
    }
    for name, cells in _speed_cells(generates, config):
        yield (name, *cells, *byte_cells(decoders[name], results[name]))


def byte_cells(decoder: Decoder, results: dict[int, list[Generation]]) -> tuple[str, ...]:
    """What generations of two lengths say of the bytes between them.

    GFLOP of one forward of every stream; token positions computed a byte behind the prompt, all
    streams together; what these cost in GFLOP. Source: paper, section on efficiency, 2 N a forward.
    """
    short, long = (results[length] for length in sorted(results))
    num_bytes = sum(len(generation.token_ids) for generation in long)
    num_bytes -= sum(len(generation.token_ids) for generation in short)
    step_gflop = positions = gflop = 0.0
    for name, stream in decoder.rule.streams.items():
        computed = _num_positions(long, name) - _num_positions(short, name)
        forward_gflop = 2e-9 * num_matrix_weights(decoder.pair.models[stream.model])
        step_gflop += forward_gflop
        positions += computed / num_bytes
        gflop += forward_gflop * computed / num_bytes
    return tuple(f"{figure:.4f}" for figure in (step_gflop, positions, gflop))


def _num_positions(generations: list[Generation], stream: str) -> float:
    """Token positions that a stream's model computed, the prompts' included."""
    return sum(each.ledger.footer.work[stream]["num_nodes"] for each in generations)


def _decoders(
    inputs: BenchInputs, config: BenchMethodsConfig, names: Sequence[str]
) -> tuple[dict[str, Decoder], list[str]]:
    """Decoders by method, and the passages that stand before prompts."""
    passages = inputs.passages(config.batch_size, config.passage_words)
    rules = bench_rules(
        k=config.k, horizon=config.new_length, passages=passages, words=inputs.swapped_words()
    )
    settings: dict[str, Any] = {"level": config.level, "batch_size": config.batch_size}
    if config.level == "byte":
        # Prompts are read anew by every call: a kept one would have no time to the first byte.
        settings["prompt_cache"] = PromptCache(max_bytes=0)
    return {name: Decoder(inputs.pair, rules[name], **settings) for name in names}, passages


def _speed_cells(
    generates: Mapping[str, Generate], config: BenchMethodsConfig
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names and the cells of SPEED_TITLES; the first one is the baseline."""
    measured = speeds(
        generates,
        config.new_length,
        runs=config.runs,
        clock=CLOCKS[config.clock],
        device=config.device,
    )
    baseline = next(iter(measured.values()))
    for name, speed in measured.items():
        slowdown = (f"{number:.2f}" for number in speed.slowdown(baseline))
        figures = (f"{number:.1f}" for number in (speed.first_ms, speed.mean, speed.error))
        yield name, (*figures, *slowdown)
