"""The streams of both models of a pair, of the best kind that each model allows."""

from .batch_stream import BatchStream
from .lone_stream import LoneStream
from .model_pair import ModelPair
from .row_attention import RowAttention
from .row_stream import RowStream
from .stream import Stream


def rows_can_join(pair: ModelPair, max_length: int) -> bool:
    """Whether rows of up to `max_length` tokens can join a batch that is being decoded."""
    return all(_attention(pair, name, max_length) is not None for name in pair.models)


def rows_can_share(pair: ModelPair, max_length: int) -> bool:
    """Whether several rows of up to `max_length` tokens can be decoded at once."""
    return not any(_is_alone(pair, name, max_length) for name in pair.models)


def open_streams(
    pair: ModelPair, num_rows: int, max_length: int, *, scores_prompts: bool
) -> dict[str, Stream]:
    """By "safe" and "risky": memories of `num_rows` rows of up to `max_length` tokens.

    scores_prompts: whether reading gives log-probabilities of the prompts' own tokens. Raises
    ValueError for several rows where `rows_can_share` says no.
    """
    return {
        name: _open_stream(pair, name, num_rows, max_length, scores_prompts=scores_prompts)
        for name in pair.models
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
