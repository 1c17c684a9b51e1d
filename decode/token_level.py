"""A pair with one tokenizer, decoded token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

from .choices import LevelName
from .model_pair import ModelPair
from .paired_streams import open_streams, rows_can_join, rows_can_share
from .prompt_ratios import PromptRatios
from .sampling_config import SamplingConfig
from .stream import Stream
from .text_stream import TextStream
from .token_text import TokenText
from .warpers import Warpers


class TokenLevel:
    """Symbols are the tokens that both models share."""

    name: LevelName = "token"
    symbols_per_token = 1

    def __init__(self, pair: ModelPair, prompt_ratios: PromptRatios | None = None) -> None:
        """prompt_ratios: those of all prompts, where they are known before.

        Raises ValueError for a pair whose models have different tokenizers.
        """
        if pair.risky_tokenizer is not None:
            raise ValueError(
                f"the models have different tokenizers ({len(pair.tokenizer)} and "
                f'{len(pair.risky_tokenizer)} tokens): such a pair needs level="byte"'
            )
        self.pair, self.prompt_ratios = pair, prompt_ratios

    @property
    def vocab_size(self) -> int:
        return self.pair.vocab_size

    @property
    def stop_token_ids(self) -> list[int]:
        return self.pair.stop_token_ids

    @property
    def special_token_ids(self) -> Sequence[int]:
        return sorted(self.pair.tokenizer.all_special_ids)

    @property
    def context_length(self) -> int | None:
        return self.pair.context_length

    def settings(self) -> dict[str, Any]:
        return {}

    def ratio_settings(self) -> dict[str, Any]:
        return {}

    def encode(self, prompt: str | list[int]) -> list[int]:
        return self.pair.encode(prompt)

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        return self.pair.encode_continuation(text)

    def horizon(self, max_new_tokens: int, max_new_bytes: int | None) -> int:
        if max_new_bytes is not None:
            raise ValueError('max_new_bytes needs level="byte": this pair decodes tokens')
        return max_new_tokens

    def too_long(self, prompt: list[int], max_new_symbols: int) -> str:
        limit = self.context_length
        if limit is None or len(prompt) + max_new_symbols <= limit:
            return ""
        return (
            f"the prompt has {len(prompt)} tokens; with {max_new_symbols} new ones it exceeds "
            f"the pair's context of {limit}"
        )

    def warpers(self, sampling: SamplingConfig) -> Warpers:
        return Warpers(sampling, self.stop_token_ids)

    def text_stream(self, stop: tuple[str, ...] = ()) -> TextStream:
        return TextStream(TokenText(self.pair.tokenizer), stop)

    def rows_can_join(self, max_length: int) -> bool:
        return rows_can_join(self.pair, max_length)

    def rows_can_share(self, max_length: int) -> bool:
        return rows_can_share(self.pair, max_length)

    def open_streams(
        self, num_rows: int, max_length: int, sampling: SamplingConfig, *, scores_prompts: bool
    ) -> dict[str, Stream]:
        """Streams of raw logits: `warpers` does what `sampling` asks for."""
        return open_streams(self.pair, num_rows, max_length, scores_prompts=scores_prompts)

    def work(self, streams: Mapping[str, Stream], row: int) -> dict[str, dict[str, float]]:
        return {}
