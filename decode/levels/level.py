"""What the models of a pair are compared symbol by symbol in: tokens, or bytes."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..models.model_pair import ModelPair
from ..models.stream import Stream
from ..rules.prefix_debt import PromptRatios
from ..rules.rule import BOTH, Reading, StreamName
from ..settings import LevelName, SamplingConfig
from ..warpers import Warpers
from .text import TextStream


class Level(Protocol):
    """A pair at one level: its symbols, how text becomes symbols, and streams that predict them.

    Batches, rules, scores and ledgers deal in symbols alone; where they say token, they mean one.
    """

    @property
    def pair(self) -> ModelPair: ...

    @property
    def prompt_ratios(self) -> PromptRatios | None:
        """Ratios of all prompts that are decoded, where they are known before."""
        ...

    @property
    def name(self) -> LevelName: ...

    @property
    def vocab_size(self) -> int:
        """Number of symbols."""
        ...

    @property
    def stop_token_ids(self) -> list[int]:
        """Symbols that end a text, ascending."""
        ...

    @property
    def special_token_ids(self) -> Sequence[int]:
        """Symbols of a prompt that owe no prefix debt."""
        ...

    @property
    def symbols_per_token(self) -> int:
        """Scales the default horizon, and brings prefix debts to the nats of a token."""
        ...

    @property
    def context_length(self) -> int | None:
        """Most symbols of a text; None where the models have no limit or do not count symbols."""
        ...

    def settings(self) -> dict[str, Any]:
        """Plain JSON values: with the pair, they make the same level again."""
        ...

    def ratio_settings(self) -> dict[str, Any]:
        """Those of the settings that decide the ratios of prompts."""
        ...

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Symbols of a prompt, its text or the symbols themselves; ValueError for bad ones."""
        ...

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Symbols of a text that follows a prompt; ValueError for bad ones."""
        ...

    def horizon(self, max_new_tokens: int, max_new_bytes: int | None) -> int:
        """Most symbols of a continuation."""
        ...

    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        """Why a prompt and its continuation do not fit into the models, "" if they do."""
        ...

    def warpers(self, sampling: SamplingConfig) -> Warpers:
        """What is left to be warped in the logits that the streams return."""
        ...

    def text_stream(self, stop: tuple[str, ...] = ()) -> TextStream: ...

    def rows_can_join(self, max_length: int) -> bool:
        """Whether rows of up to `max_length` symbols can join a batch that is being decoded."""
        ...

    def rows_can_share(self, max_length: int) -> bool:
        """Whether several rows of up to `max_length` symbols can be decoded at once."""
        ...

    def open_streams(
        self,
        num_rows: int,
        max_length: int,
        sampling: SamplingConfig,
        *,
        scores_prompts: bool,
        readings: Mapping[StreamName, Reading] = BOTH,
    ) -> Mapping[str, Stream]:
        """By name: memories of `num_rows` rows of up to `max_length` symbols.

        scores_prompts: whether reading gives log-probabilities of the prompts' own symbols.
        """
        ...

    def outgrown(self, streams: Mapping[str, Stream], row: int) -> str:
        """Which model has too few positions for the text of a row, "" while both have enough."""
        ...

    def work(self, streams: Mapping[str, Stream], row: int) -> dict[str, dict[str, float]]:
        """By "safe" and "risky": what a row has cost, `num_forwards` among it; {} where each
        symbol is a forward."""
        ...
