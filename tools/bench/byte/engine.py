"""Whole decoders at byte level, projection, draw and ledger included, beside plain forwards."""

from collections.abc import Callable
from functools import partial

import torch
from transformers import DynamicCache

from anchored import Anchored, ByteSettings, Decoder, ModelPair, PromptCache
from anchored.decode.levels.level import open_stream

from ..timing import THREAD, Stopwatch
from .pair import BytePair
from .work import BUDGET, Texts, encoded


def as_model_pair(pair: BytePair) -> ModelPair:
    """The pair as decoders take it."""
    safe, risky = (pair.models[name] for name in ("safe", "risky"))
    return ModelPair(
        safe.model,
        risky.model,
        safe.pretrained_tokenizer(),
        risky_tokenizer=risky.pretrained_tokenizer(),
    )


class EngineWork:
    """One decoder and `batch_size` copies of a prompt, each with a seed of its own."""

    def __init__(
        self, pair: ModelPair, settings: ByteSettings, texts: Texts, batch_size: int
    ) -> None:
        cache = PromptCache(0)  # prompts are read in every call
        rule = Anchored(k=BUDGET, debt="none")  # with a debt the risky model may rest
        self.decoder = Decoder(pair, rule, level="byte", byte_settings=settings, prompt_cache=cache)
        self._texts, self._batch_size = texts, batch_size
        self.num_bytes = 0
        """Behind the prompts, all rows together, in the last run."""

    def seconds(self) -> float:
        """Of the bytes behind the first one of each row."""
        first, _ = self._run(1)
        whole, self.num_bytes = self._run(len(self._texts.rest))
        self.num_bytes -= self._batch_size
        return whole - first

    def _run(self, num_bytes: int) -> tuple[float, int]:
        with Stopwatch(THREAD) as watch:
            results = self.decoder.generate(
                [self._texts.prompt] * self._batch_size,
                max_new_bytes=num_bytes,
                seed=list(range(self._batch_size)),
            )
        return watch.seconds, sum(len(result.token_ids) for result in results)


@torch.inference_mode()
def forwards_s(pair: BytePair, texts: Texts, batch_size: int) -> float:
    """Plain forwards of transformers: one a token, of as many equal rows."""
    caches = {name: DynamicCache(config=m.model.config) for name, m in pair.models.items()}

    def read(name: str, tokens: list[int]) -> None:
        rows = torch.tensor([tokens] * batch_size)
        pair.models[name].model(input_ids=rows, past_key_values=caches[name], logits_to_keep=1)

    return _in_turns_s(pair, texts, read)


@torch.inference_mode()
def token_rows_s(pair: BytePair, models: ModelPair, texts: Texts, batch_size: int) -> float:
    """The same by the streams of the token level."""
    length, rows = len(texts.prompt) + len(texts.rest) + 1, list(range(batch_size))
    streams = {
        name: open_stream(models, name, batch_size, length, scores_prompts=False)
        for name in pair.models
    }

    def read(name: str, tokens: list[int]) -> None:
        if len(tokens) > 1:
            streams[name].read([tokens] * batch_size, rows)
        else:
            streams[name].feed_rows(rows, [tokens] * batch_size)

    return _in_turns_s(pair, texts, read)


def _in_turns_s(pair: BytePair, texts: Texts, read: Callable[[str, list[int]], None]) -> float:
    """Seconds of the tokens behind the prompt, the models in turns, as a pair is decoded."""
    turns = []
    for name, each in pair.models.items():
        prompt = encoded(each, texts.prompt)
        rest = encoded(each, texts.prompt + texts.rest)[len(prompt) :]
        read(name, prompt)
        turns += [(place / len(rest), name, token) for place, token in enumerate(rest)]
    with Stopwatch(THREAD) as watch:
        for _, name, token in sorted(turns):
            read(name, [token])
    return watch.seconds


def engine_works(
    pair: BytePair, texts: Texts, settings: dict[str, ByteSettings], batch_size: int
) -> tuple[dict[str, Callable[[], float]], dict[str, EngineWork]]:
    """Seconds a byte of a row by name, and the decoders among them."""
    models = as_model_pair(pair)
    decoders = {name: EngineWork(models, own, texts, batch_size) for name, own in settings.items()}
    works: dict[str, Callable[[], float]] = {
        "transformers": partial(forwards_s, pair, texts, batch_size),
        "token rows": partial(token_rows_s, pair, models, texts, batch_size),
    }
    works |= {name: decoder.seconds for name, decoder in decoders.items()}
    return works, decoders
