"""Every decoding method in the paper's tables of efficiency, by tokens or bytes."""

import resource
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import fmean, median
from typing import Any, NamedTuple

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
    ModelPair,
    NoOpt,
    Pathwise,
    PromptCache,
    RiskyOnly,
    SafeOnly,
    System,
    TokenSwap,
)
from anchored.decode.engine.prompts import prompts_by_stream
from anchored.decode.pair_options import check_presence
from anchored.decode.rules.rule import Rule, takes_passage

from .baselines import WARPERS, Generate, official_pair, transformers_alone
from .flops import num_matrix_weights, token_cost
from .inputs import BenchInputs
from .options import BenchDecodeConfig, method_names
from .timing import CLOCKS, WALL, Clock, deviation, in_turns, print_table, ratio_cells, timed

RCAD_ALPHA = 0.5
RISKY_ALONE, OFFICIAL = "transformers, risky alone", "official package"
RISKY_ALONE_AT_BYTES = "risky_only"
"""transformers knows no bytes: there the risky model alone is a rule of ours."""
AT_TOKENS_ONLY = ("token_swap",)
"""Rules that know words as tokens."""
WIDTH, NAME_WIDTH = 12, 26
TITLES = ("", "batch", "first ms", "symbols/s", "error", "slowdown", "error")
COST_TITLES = {
    "token": ("risky fwd", "step GFLOP", "all GFLOP"),
    "byte": ("step GFLOP", "positions", "GFLOP"),
}
LAST_TITLES = ("x official", "peak GB")


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
        "pathwise": Pathwise(k=k, debt="none"),
        "no_opt": NoOpt(k=k, debt="none"),
        "cold_start": ColdStart(k=k),
        "global_switch": GlobalSwitch(K=k * horizon),
    }


class Speed(NamedTuple):
    """One method's speed in a run."""

    first_s: float
    """Seconds to the first symbol of every request: the prompts and one step."""
    per_s: float
    """Symbols a second after the first ones, all requests together."""


def speeds(
    generates: Mapping[str, Generate],
    length: int,
    *,
    runs: int,
    clock: Clock = WALL,
    device: str = "cpu",
) -> dict[str, list[Speed]]:
    """Speeds of methods in each of several runs, in which they take turns.

    Raises ValueError where all texts of a method end with their first symbol.
    Source: paper, section on efficiency: (N_T - N_1) / (t_T - t_1).
    """

    def speed(name: str) -> Speed:
        (one_s, one), (whole_s, whole) = (
            timed(partial(generates[name], number), clock, device=device) for number in (1, length)
        )
        if whole <= one:
            raise ValueError(f"{name} ends its texts at once: there is no speed to measure")
        return Speed(one_s, (whole - one) / (whole_s - one_s))

    return in_turns({name: partial(speed, name) for name in generates}, runs)


@torch.inference_mode()
def run(config: BenchDecodeConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    inputs = BenchInputs.of(config)
    alone = RISKY_ALONE_AT_BYTES if config.level == "byte" else RISKY_ALONE
    size = f", V = {config.vocab_size}" if config.is_random else ""
    print(
        f"{config.safe} + {config.risky}{size}, {config.dtype} on {config.device}, {config.clock} "
        f"clock ({torch.get_num_threads()} threads), torch {torch.__version__}, "
        f"{config.prompt_length} + {config.new_length} {config.level}s, k = {config.k}, "
        f"{config.runs} runs; slowdown: the speed of {alone} over this one's, in one run"
    )
    rows = chain.from_iterable(_rows(inputs, config, size) for size in config.batch_sizes)
    titles = (*TITLES, *COST_TITLES[config.level], *LAST_TITLES)
    print_table(titles, rows, WIDTH, name_width=NAME_WIDTH)
    return 0


def _decoders(
    config: BenchDecodeConfig, pair: ModelPair, rules: Mapping[str, Rule], batch_size: int
) -> dict[str, Decoder]:
    """A decoder of every method, and of every number of drafts."""
    names = list(method_names(config.methods))
    settings: dict[str, Any] = {"level": config.level, "batch_size": batch_size}
    if config.level == "byte":
        left_out = (*AT_TOKENS_ONLY, RISKY_ALONE_AT_BYTES)
        names = [RISKY_ALONE_AT_BYTES, *(name for name in names if name not in left_out)]
        # Prompts are read anew by every call: a kept one would have no time to the first byte.
        settings["prompt_cache"] = PromptCache(max_bytes=0)
    decoders = {name: Decoder(pair, rules[name], **settings) for name in names}
    for draft in config.drafts:
        decoders[f"anchored, drafts {draft}"] = Decoder(
            pair, rules["anchored"], speculate=draft, **settings
        )
    return decoders


def _rows(inputs: BenchInputs, config: BenchDecodeConfig, batch_size: int) -> Iterator[list[str]]:
    """A row for the risky model alone, the authors' package if it is installed, and the methods."""
    pair, prompts = inputs.pair, inputs.prompts(batch_size, config.prompt_length, config.level)
    passages = inputs.passages(batch_size, config.passage_words)
    words = inputs.swapped_words()
    rules = bench_rules(k=config.k, horizon=config.new_length, passages=passages, words=words)
    decoders = _decoders(config, pair, rules, batch_size)
    # 1. What is timed, the baseline first.
    generates: dict[str, Generate] = {}
    if config.level == "token":
        generates[RISKY_ALONE] = transformers_alone(pair.risky, prompts)
        if (official := official_pair(pair, prompts, k=config.k)) is not None:
            generates[OFFICIAL] = official
    results: dict[str, dict[int, list[Generation]]] = {name: {} for name in decoders}
    for name, decoder in decoders.items():
        generates[name] = decoder_generate(decoder, prompts, passages, results[name])
    clock = CLOCKS[config.clock]
    measured = speeds(
        generates, config.new_length, runs=config.runs, clock=clock, device=config.device
    )
    # 2. Speeds next to the baseline's in the same run, and what a symbol should cost.
    per_s = {name: [speed.per_s for speed in runs] for name, runs in measured.items()}
    baseline = next(iter(per_s.values()))
    for name, runs in measured.items():
        mean = fmean(per_s[name])
        yield [
            name,
            str(batch_size),
            f"{1e3 * median(speed.first_s for speed in runs):.1f}",
            *(f"{number:.1f}" for number in (mean, deviation(per_s[name]))),
            *ratio_cells(baseline, per_s[name]),
            *_cost_cells(decoders.get(name), prompts[0], passages[0], results.get(name, {})),
            f"{mean / fmean(per_s[OFFICIAL]):.2f}" if OFFICIAL in per_s else "-",
            f"{_peak_bytes(pair) / 1e9:.2f}",
        ]


def _cost_cells(
    decoder: Decoder | None, prompt: list[int], passage: str, results: dict[int, list[Generation]]
) -> tuple[str, ...]:
    """Costs of a method; nothing for another program's, which has no decoder."""
    if decoder is None:
        return ("-", "-", "-")
    if decoder.level.name == "byte":
        return byte_cells(decoder, results)
    return token_cells(decoder, prompt, passage if takes_passage(decoder.rule) else None, results)


def decoder_generate(
    decoder: Decoder,
    prompts: list[list[int]],
    passages: list[str],
    results: dict[int, list[Generation]],
) -> Generate:
    """The call of a decoder that `speeds` times; results takes the generations, by their length."""
    is_byte = decoder.level.name == "byte"
    settings: dict[str, Any] = {} if is_byte else dict(WARPERS)
    if takes_passage(decoder.rule):
        settings["passages"] = passages
    length_name = "max_new_bytes" if is_byte else "max_new_tokens"

    def generate(length: int) -> int:
        results[length] = decoder.generate(prompts, **settings | {length_name: length})
        return sum(len(generation.token_ids) for generation in results[length])

    return generate


def token_cells(
    decoder: Decoder, prompt: list[int], passage: str | None, results: dict[int, list[Generation]]
) -> tuple[str, str, str]:
    """Risky forwards a token after the first; GFLOP of a step's forwards, and of a whole token.

    results: of two lengths. Drafts that are rejected are not in the GFLOP.
    """
    (one, short), (new_tokens, long) = sorted(results.items())
    forwards = sum(result.ledger.risky_forwards for result in long)
    forwards -= sum(result.ledger.risky_forwards for result in short)
    read = prompts_by_stream(decoder.level, decoder.open_rule, prompt, passage)
    lengths = {stream: len(read.get(stream, prompt)) for stream in decoder.rule.streams}
    cost = token_cost(decoder.pair, decoder.rule, prompt_tokens=lengths, new_tokens=new_tokens)
    return (
        f"{forwards / (len(long) * (new_tokens - one)):.2f}",
        f"{cost['steps'] / 1e9:.3f}",
        f"{sum(cost.values()) / 1e9:.3f}",
    )


def byte_cells(decoder: Decoder, results: dict[int, list[Generation]]) -> tuple[str, ...]:
    """Costs of the bytes by which the generations of two lengths differ.

    They are the GFLOP of one forward of every stream; the token positions computed a byte after the
    prompt, all streams together; and what these cost in GFLOP.
    Source: paper, section on efficiency, 2 N a forward.
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
    return sum(result.ledger.footer.work[stream]["num_nodes"] for result in generations)


def _peak_bytes(pair: ModelPair) -> int:
    """Device memory on CUDA, else the process's largest resident size so far."""
    if pair.risky.device.type == "cuda":
        return torch.cuda.max_memory_allocated(pair.risky.device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
