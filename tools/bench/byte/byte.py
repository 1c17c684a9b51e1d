"""Byte level beside plain token forwards, on a small trained pair."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from anchored import Anchored, text_tables
from anchored.decode.byte.settings import ByteEvaluation, ByteSettings
from anchored.tools.commands.files import check_new_folder

from ..methods import speeds
from ..options import BenchByteConfig, Table, method_names
from ..timing import THREAD, deviation, in_turns, times_baseline
from .engine import engine_works
from .methods import BASELINE, methods_at_bytes
from .official import official_bytes
from .pair import BytePair, load_pair, published_pair, save_pair, trained_pair
from .work import (
    Scoring,
    Texts,
    Walk,
    context_work,
    draw_hard_strings,
    drawn_texts,
    first_byte_s,
    num_tokens,
    plain_s,
    prefill_s,
    projection_s,
    prompt_debt,
    string_work_s,
    tree_work_s,
)

WIDTH = 17
NUM_STRINGS = 1500
NUM_RATIOS = Anchored(k=0.0).num_ratios
SCORINGS = {
    "exact": Scoring(("exact", "exact"), NUM_RATIOS),
    "bounded": Scoring(("lower", "upper"), NUM_RATIOS),
    "all ratios": Scoring(("exact", "exact"), None),
    "all bounded": Scoring(("lower", "upper"), None),
}
"""Of the debt of a default rule, and as `prompt_ratios` scores prompts, for rules of any kind."""
Rows = Iterator[tuple[str, ...]]
"""Of a table, the titles first."""


def run(config: BenchByteConfig) -> int:
    """Print the tables that were asked for and return 0."""
    if config.folder is not None and not config.folder.exists():
        check_new_folder(config.folder)
    torch.set_num_threads(1)
    pair = measured_pair(config)
    sizes = " and ".join(str(each.model.vocab_size) for each in pair.models.values())
    weights = "random weights" if config.tokenizers else f"{config.train_steps} steps"
    shape = next(iter(pair.models.values())).model.config
    print(
        f"two Llamas of hidden size {shape.hidden_size}, {shape.num_hidden_layers} layers, "
        f"V = {sizes}, {weights}, CPU, torch {torch.__version__}, "
        f"one thread's time; {config.prompt_bytes} + {config.new_bytes} bytes of unseen text, "
        f"first bytes and debts over {config.num_prompts} prompts, "
        f"best of {config.runs} runs, error: their standard deviation"
    )
    for name in config.tables:
        text_tables.print_lines(TABLES[name](pair, config), WIDTH)
        print()
    return 0


def measured_pair(config: BenchByteConfig) -> BytePair:
    """The one of published tokenizers, or the one that `folder` holds, or else a new one."""
    # Twice the tokens that are asked for: the other tokenizer may make more of the same text.
    context_length = max(16 * (config.prompt_bytes + config.new_bytes), 2 * max(config.contexts))
    if config.tokenizers is not None:
        folder, shape, seed = config.tokenizers, config.shape, config.seed
        return published_pair(folder, context_length=context_length, shape=shape, seed=seed)
    if config.folder is not None and config.folder.exists():
        return load_pair(config.folder)
    pair = trained_pair(
        vocab_sizes=config.vocab_sizes,
        train_steps=config.train_steps,
        context_length=context_length,
        shape=config.shape,
        seed=config.seed,
    )
    if config.folder is not None:
        save_pair(pair, config.folder)
    return pair


def unseen_texts(pair: BytePair, config: BenchByteConfig) -> Texts:
    """The beginning of the text that the models were not trained on."""
    text = list(pair.held_out[: config.prompt_bytes + config.new_bytes])
    return Texts(text[: config.prompt_bytes], text[config.prompt_bytes :])


def drawn_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """`decode_table` over what the pair itself makes of the unseen prompt."""
    unseen, length = unseen_texts(pair, config), config.new_bytes
    texts = drawn_texts(pair, unseen, new_bytes=length, prefetch=config.prefetch, seed=config.seed)
    return decode_table(pair, config, "drawn", texts)


def unseen_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """`decode_table` over the unseen text."""
    return decode_table(pair, config, "unseen", unseen_texts(pair, config))


def decode_table(pair: BytePair, config: BenchByteConfig, kind: str, texts: Texts) -> Rows:
    """A byte of both models against the plain forwards of the same text; the projection apart."""
    engines = {
        "exact": (ByteEvaluation(), ByteEvaluation()),
        "prefetch": 2 * (ByteEvaluation(prefetch=config.prefetch),),
        "tau": (ByteEvaluation(), ByteEvaluation(tau=config.tau)),
        "tau, prefetch": (
            ByteEvaluation(prefetch=config.prefetch),
            ByteEvaluation(prefetch=config.prefetch, tau=config.tau),
        ),
    }
    works: dict[str, Callable[[], float]] = {"plain": partial(plain_s, pair, texts)}
    walks = {name: Walk(pair, evaluations, texts) for name, evaluations in engines.items()}
    works.update({name: walk.seconds for name, walk in walks.items()})
    works["projection"] = partial(projection_s, len(texts.rest))
    if (official := official_bytes(pair)) is not None:
        works["official"] = partial(official.walk_s, texts)
    seconds = in_turns(works, config.runs)
    tokens = {name: num_tokens(model, texts) for name, model in pair.models.items()}
    yield (
        *(f"{kind} text", "ms/byte", "error", "x plain", "safe fwd/token", "risky fwd/token"),
        *("nodes/fwd", "max TV"),
    )
    for name, times in seconds.items():
        figures = _time_cells(times, seconds["plain"], len(texts.rest))
        cells = walks[name].cells(tokens) if name in walks else ("-",) * 4
        yield (name, *figures, *cells)


def prompt_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """The debts of prompts against two plain prefills; first bytes with debts and without."""
    texts = [Texts(prompt, []) for prompt in unseen_prompts(pair, config)]
    by_text: dict[str, Callable[[Texts], float]] = {"prefill": partial(prefill_s, pair)}
    for name, scoring in {"no debt": Scoring(("none", "none"), None), **SCORINGS}.items():
        by_text[name] = partial(first_byte_s, pair, scoring)
    if (official := official_bytes(pair)) is not None:
        by_text["official, no debt"] = partial(official.first_byte_s, has_debt=False)
        by_text["official"] = partial(official.first_byte_s, has_debt=True)
        by_text["official debt"] = official.debt_s
    works = {name: partial(_mean_s, texts, work) for name, work in by_text.items()}
    seconds = in_turns(works, config.runs)
    yield ("prompt", "debt ms", "error", "x prefill", "first byte ms", "error", "x no debt")
    yield ("prefill", *_time_cells(seconds["prefill"], seconds["prefill"], 1), "-", "-", "-")
    for name in [name for name in works if name not in ("prefill", "official debt")]:
        debt = ("-", "-", "-")
        if "no debt" not in name:
            # Ours ends with the laws of the first byte: without them there is no less to do.
            alone = "official debt" if name == "official" else name
            debt = _time_cells(seconds[alone], seconds["prefill"], 1)
        without = "official, no debt" if "official" in name else "no debt"
        yield (name, *debt, *_time_cells(seconds[name], seconds[without], 1))


def _mean_s(texts: list[Texts], work: Callable[[Texts], float]) -> float:
    return sum(map(work, texts)) / len(texts)


def unseen_prompts(pair: BytePair, config: BenchByteConfig) -> list[list[int]]:
    """Prompts from all over the text that the models were not trained on.

    Raises ValueError where it is too short for so many.
    """
    text, length, number = pair.held_out.decode(), config.prompt_bytes, config.num_prompts
    if (num_starts := len(text) - length) < number:
        raise ValueError(
            f"{len(text)} characters of unseen text hold no {number} prompts of {length}: "
            "lower num_prompts or prompt_bytes"
        )
    starts = range(0, num_starts, num_starts // number)[:number]
    return [list(text[start : start + length].encode()) for start in starts]


def debt_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """Bounded prefix debts against exact ones, and what they compute, over prompts."""
    prompts = unseen_prompts(pair, config)
    debts = {name: [prompt_debt(pair, own, p) for p in prompts] for name, own in SCORINGS.items()}
    exact = torch.tensor([debt.nats for debt in debts["exact"]])
    yield ("debts", "mean nats", "x exact", "largest", "safe nodes", "risky nodes", "x nodes")
    for name, own in debts.items():
        nats = torch.tensor([debt.nats for debt in own])
        nodes = torch.tensor([debt.num_nodes for debt in own]).float().mean(0)
        base = torch.tensor([debt.num_nodes for debt in debts["all ratios"]]).float().mean(0)
        yield (
            name,
            f"{nats.mean():.3f}",
            f"{(nats / exact).mean():.3f}",
            f"{(nats / exact).max():.3f}",
            *(f"{number:.0f}" for number in nodes.tolist()),
            f"{(nodes.sum() / base.sum()).item():.2f}",
        )


def tree_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """Work outside the risky model, a byte, behind contexts of some lengths."""
    vocabulary = pair.models["risky"].vocabulary
    works = {
        str(length): partial(
            tree_work_s, vocabulary, pair.held_out, num_tokens=length, num_bytes=config.new_bytes
        )
        for length in config.contexts
    }
    seconds = in_turns(works, config.runs)
    yield ("context", "tree us/byte", "error", "x first")
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        cells = _time_cells(times, first, config.new_bytes / 1e3)
        yield (f"{name} tokens", *cells)


def string_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """A byte of random strings that pretokenizers find hard: the trees alone, and the worst one."""
    strings = draw_hard_strings(NUM_STRINGS, seed=config.seed, longest=30)
    yield ("hard strings", "number", "us/byte", "error", "x first", "worst ms/byte")
    first = None
    for model in pair.models.values():
        texts = [model.vocabulary.normalize(text) for text in strings]
        times = torch.tensor(
            [[string_work_s(model.vocabulary, text) for text in texts] for _ in range(config.runs)]
        )
        lengths = torch.tensor([len(text) for text in texts])
        seconds = times.sum(1).tolist()
        first = first or seconds
        yield (
            f"V = {model.vocabulary.vocab_size}",
            str(len(texts)),
            *_time_cells(seconds, first, lengths.sum().item() / 1e3),
            f"{1e3 * (times.amin(0) / lengths).max().item():.2f}",
        )


def long_context_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """A byte of both models behind contexts of some lengths, reading them, and the memory."""
    settings = ByteSettings(debt=config.context_debt, prefetch=config.prefetch)
    evaluations = [settings.evaluation(name) for name in pair.models]
    yield (
        *("both models", "safe tokens", "risky tokens", "read s", "ms/byte", "error", "x first"),
        *("peak MiB", "(L, V) MiB"),
    )
    first = None
    for length in config.contexts:
        work = context_work(pair, evaluations, num_tokens=length, num_bytes=config.new_bytes)
        parts = torch.tensor(work.byte_s).chunk(config.runs)
        seconds = [part.sum().item() / len(part) for part in parts]
        first = first or seconds
        yield (
            f"{length} tokens",
            *(str(number) for number in work.num_tokens.values()),
            f"{work.read_s:.2f}",
            *_time_cells(seconds, first, 1),
            f"{work.peak_mib:.0f}",
            f"{work.stored_mib:.0f}",
        )


def engine_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """Whole decoders against plain forwards of what they draw, by how many texts at once.

    The last columns are the mean ratio to "exact" in the same run and its deviation.
    """
    unseen, length = unseen_texts(pair, config), config.new_bytes
    texts = drawn_texts(pair, unseen, new_bytes=length, prefetch=config.prefetch, seed=config.seed)
    settings = {
        "exact": ByteSettings(prefetch=0),
        "prefetch": ByteSettings(prefetch=config.prefetch),
        "tau": ByteSettings(tau=config.tau, prefetch=0),
        "tau, prefetch": ByteSettings(tau=config.tau, prefetch=config.prefetch),
    }
    yield (
        *("rows", "engine", "ms/byte", "error", "x transformers", "x token rows"),
        *("x exact", "error"),
    )
    for batch_size in config.batch_sizes:
        works, decoders = engine_works(pair, texts, settings, batch_size)
        seconds = in_turns(works, config.runs)
        num_bytes = dict.fromkeys(works, batch_size * length)
        num_bytes |= {name: decoder.num_bytes for name, decoder in decoders.items()}
        ms = {name: [1e3 * s / num_bytes[name] for s in own] for name, own in seconds.items()}
        for name, own in ms.items():
            ratios = (min(own) / min(ms[other]) for other in ("transformers", "token rows"))
            yield (
                *(str(batch_size), name, f"{min(own):.2f}", f"{deviation(own):.2f}"),
                *(f"{ratio:.2f}" for ratio in ratios),
                *(f"{ratio:.2f}" for ratio in times_baseline(own, ms["exact"])),
            )


@torch.inference_mode()
def methods_table(pair: BytePair, config: BenchByteConfig) -> Rows:
    """Decoding by each method, one text at a time, beside the risky model alone."""
    names = method_names((BASELINE, *config.methods))
    methods = methods_at_bytes(pair, unseen_texts(pair, config).prompt, names, config)
    generates = {name: method.generate for name, method in methods.items()}
    found = speeds(generates, config.new_bytes, runs=config.runs, clock=THREAD)
    yield (
        *("method", "TTFB ms", "bytes/s", "error", "slowdown", "error", "forward GFLOP"),
        *("positions/byte", "GFLOP/byte"),
    )
    for name, method in methods.items():
        yield (
            name,
            f"{found[name].first_ms:.1f}",
            f"{found[name].mean:.1f}",
            f"{found[name].error:.1f}",
            *(f"{number:.2f}" for number in found[name].slowdown(found[BASELINE])),
            *method.cost_cells(),
        )


TABLES: dict[Table, Callable[[BytePair, BenchByteConfig], Rows]] = {
    "drawn": drawn_table,
    "unseen": unseen_table,
    "prompt": prompt_table,
    "debts": debt_table,
    "tree": tree_table,
    "strings": string_table,
    "context": long_context_table,
    "engine": engine_table,
    "methods": methods_table,
}


def _time_cells(seconds: list[float], baseline: list[float], num: float) -> tuple[str, str, str]:
    """(milliseconds a unit, their standard deviation, times the baseline).

    The best run counts: what else the machine does only ever adds.
    """
    ms = [1e3 * value / num for value in seconds]
    return f"{min(ms):.2f}", f"{deviation(ms):.2f}", f"{min(seconds) / min(baseline):.2f}"
