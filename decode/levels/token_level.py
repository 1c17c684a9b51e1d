"""A pair whose tokenizers share their tokens, decoded token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..models.attention import RowAttention
from ..models.model_pair import ModelPair
from ..models.row_stream import RowStream
from ..models.stream import BatchStream, LoneStream, Stream
from ..rules.prefix_debt import PromptRatios
from ..rules.rule import BOTH, Reading, StreamName
from ..settings import LevelName, SamplingConfig
from ..warpers import Warpers
from .text import TextStream, TokenText


class TokenLevel:
    """Symbols are the tokens that both models share."""

    name: LevelName = "token"
    symbols_per_token = 1

    def __init__(self, pair: ModelPair, prompt_ratios: PromptRatios | None = None) -> None:
        """prompt_ratios: those of all prompts, where they are known before.

        Raises ValueError for a pair whose tokenizers make different tokens of plain text.
        """
        if not pair.shares_tokens:
            sizes = " and ".join(str(len(tokenizer)) for tokenizer in pair.tokenizers.values())
            raise ValueError(
                f"the models have different tokenizers ({sizes} tokens): {pair.shared.difference}; "
                'such a pair needs level="byte"'
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
        """Those that are special in either tokenizer."""
        return sorted({t for own in self.pair.tokenizers.values() for t in own.all_special_ids})

    @property
    def context_length(self) -> int | None:
        return self.pair.context_length

    def settings(self) -> dict[str, Any]:
        """What is left out of a model's own tokens; {} where both tokenizers have the same."""
        shared = self.pair.shared
        if shared.is_whole:
            return {}
        return {
            "vocab_size": shared.vocab_size,
            "banned_token_ids": list(shared.banned_token_ids),
        }

    def ratio_settings(self) -> dict[str, Any]:
        return self.settings()

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
        return Warpers(sampling, self.stop_token_ids, self.pair.shared.banned_token_ids)

    def text_stream(self, stop: tuple[str, ...] = ()) -> TextStream:
        return TextStream(TokenText(self.pair.tokenizer), stop)

    def rows_can_join(self, max_length: int) -> bool:
        return rows_can_join(self.pair, max_length)

    def rows_can_share(self, max_length: int) -> bool:
        return rows_can_share(self.pair, max_length)

    def open_streams(
        self,
        num_rows: int,
        max_length: int,
        sampling: SamplingConfig,
        *,
        scores_prompts: bool,
        readings: Mapping[StreamName, Reading] = BOTH,
    ) -> dict[str, Stream]:
        """Streams of raw logits: `warpers` does what `sampling` asks for."""
        return open_streams(
            self.pair, num_rows, max_length, scores_prompts=scores_prompts, readings=readings
        )

    def outgrown(self, streams: Mapping[str, Stream], row: int) -> str:
        return ""  # symbols are counted before anything is read: `too_long`

    def work(self, streams: Mapping[str, Stream], row: int) -> dict[str, dict[str, float]]:
        return {}


def rows_can_join(pair: ModelPair, max_length: int) -> bool:
    """Whether rows of up to `max_length` tokens can join a batch that is being decoded."""
    return all(_attention(pair, name, max_length) is not None for name in pair.models)


def rows_can_share(pair: ModelPair, max_length: int) -> bool:
    """Whether several rows of up to `max_length` tokens can be decoded at once."""
    return not any(_is_alone(pair, name, max_length) for name in pair.models)


def open_streams(
    pair: ModelPair,
    num_rows: int,
    max_length: int,
    *,
    scores_prompts: bool,
    readings: Mapping[StreamName, Reading] = BOTH,
) -> dict[str, Stream]:
    """By name: memories of `num_rows` rows of up to `max_length` tokens.

    scores_prompts: whether reading gives log-probabilities of the prompts' own tokens. Raises
    ValueError for several rows where `rows_can_share` says no.
    """
    return {
        name: _open_stream(pair, own.model, num_rows, max_length, scores_prompts=scores_prompts)
        for name, own in readings.items()
    }


def _open_stream(
    pair: ModelPair, name: str, num_rows: int, max_length: int, *, scores_prompts: bool
) -> Stream:
    model, attention = pair.models[name], _attention(pair, name, max_length)
    if _is_alone(pair, name, max_length):
        if num_rows > 1:
            raise ValueError(
                f"the {name} model decodes texts of {max_length} tokens one at a time, "
                f"got {num_rows} rows"
            )
        return LoneStream(model, pair.vocab_size, scores_prompts=scores_prompts)
    if attention is None:
        return BatchStream(model, num_rows, pair.vocab_size, scores_prompts=scores_prompts)
    return RowStream(
        model,
        attention,
        num_rows=num_rows,
        max_length=max_length,
        output=pair.output_layers[name],
        scores_prompts=scores_prompts,
    )


def _attention(pair: ModelPair, name: str, max_length: int) -> RowAttention | None:
    attention = pair.row_attention[name]
    return attention if attention is not None and attention.covers(max_length) else None


def _is_alone(pair: ModelPair, name: str, max_length: int) -> bool:
    return pair.decodes_alone[name] and _attention(pair, name, max_length) is None
