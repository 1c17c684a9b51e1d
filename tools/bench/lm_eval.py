"""A pair as a model of lm-eval beside lm-eval's own model, which runs each of the two alone."""

import logging
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from anchored import Anchored, Decoder, ModelPair, text_tables
from anchored.eval.harness.model import AnchoredLM
from anchored.tools.commands.options import check_presence

from .options import BenchLmEvalConfig
from .random_inputs import configured_pair
from .timing import PROCESS, WALL, in_turns, timed

Requests = list[SimpleNamespace]
NAME_WIDTH, WIDTH = 26, 12
TITLES = ("requests", "number", "hf safe s", "hf risky s", "pair s", "x hf both")
LETTERS = 4


def run(config: BenchLmEvalConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    logging.getLogger("anchored").setLevel(logging.ERROR)  # greedy decoding is no news here
    print(
        f"{config}, batch {config.batch_size}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, k = {config.k}: {_clock_name(config)} seconds, median of "
        f"{config.runs} runs"
    )
    rows = chain([TITLES], table_rows(config))
    text_tables.print_lines(rows, WIDTH, name_width=NAME_WIDTH)
    return 0


def table_rows(config: BenchLmEvalConfig) -> Iterator[tuple[str, ...]]:
    """A row for every kind of request, as they are measured, and one for all of them."""
    pair = configured_pair(config, 2 * (config.context_tokens + config.choice_tokens))
    models = _models(pair, config)
    total: dict[str, float] = dict.fromkeys(models, 0.0)
    num_requests = 0
    for kind, (method, requests) in _requests(config).items():
        works = {
            name: partial(_seconds, partial(getattr(lm, method), requests), config)
            for name, lm in models.items()
        }
        runs = in_turns(works, config.runs)
        seconds = {name: statistics.median(own) for name, own in runs.items()}
        num_requests += len(requests)
        total = {name: total[name] + seconds[name] for name in total}
        yield _cells(kind, len(requests), seconds)
    yield _cells("all", num_requests, total)


def _cells(kind: str, num_requests: int, seconds: Mapping[str, float]) -> tuple[str, ...]:
    ratio = seconds["pair"] / (seconds["safe"] + seconds["risky"])
    shown = (f"{seconds[name]:.3f}" for name in ("safe", "risky", "pair"))
    return (kind, str(num_requests), *shown, f"{ratio:.2f}")


def _models(pair: ModelPair, config: BenchLmEvalConfig) -> dict[str, Any]:
    from lm_eval.models.huggingface import HFLM

    decoder = Decoder(pair, Anchored(k=config.k), batch_size=config.batch_size)
    tokenizer: PreTrainedTokenizerFast = pair.tokenizer
    own = {
        name: HFLM(model, tokenizer=tokenizer, batch_size=config.batch_size, device=config.device)
        for name, model in pair.models.items()
    }
    return {**own, "pair": AnchoredLM(decoder)}


def _requests(config: BenchLmEvalConfig) -> dict[str, tuple[str, Requests]]:
    """By kind: the method that answers, and what it is asked in words t2, t3, ..."""
    draw = random.Random(0)

    def text(num_tokens: int) -> str:
        return "".join(f" t{draw.randrange(2, config.vocab_size)}" for _ in range(num_tokens))

    contexts = [text(config.context_tokens)[1:] for _ in range(config.questions)]
    choices = [
        _asked(context, text(max(1, config.choice_tokens - number)))
        for context in contexts
        for number in range(config.choices)
    ]
    letters = [_asked(context, f" t{2 + n}") for context in contexts for n in range(LETTERS)]
    length = config.context_tokens + config.choice_tokens
    texts = [_asked(text(length)[1:]) for _ in range(config.texts)]
    settings = {"until": ["none"], "max_gen_toks": config.new_tokens}
    prompts = [_asked(text(config.context_tokens)[1:], settings) for _ in range(config.texts)]
    return {
        "choices of several tokens": ("loglikelihood", choices),
        "letters": ("loglikelihood", letters),
        "whole texts": ("loglikelihood_rolling", texts),
        "generations": ("generate_until", prompts),
    }


def _asked(*args: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args, task_name="")


def _seconds(answer: Callable[..., Any], config: BenchLmEvalConfig) -> float:
    clock = PROCESS if config.device == "cpu" else WALL
    return timed(partial(answer, disable_tqdm=True), clock, device=config.device)[0]


def _clock_name(config: BenchLmEvalConfig) -> str:
    return "processor" if config.device == "cpu" else "wall"
