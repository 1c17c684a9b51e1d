"""Decoding from inside `generate` of transformers: model.generate(..., custom_generate=...)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from ..errors import AnchoredError
from ..fields import INT_LIMIT
from .ambient import in_plain_torch
from .decoder import Decoder
from .generation import Generation
from .streams.stream import CACHE
from .warpers import TRUNCATIONS

PROCESSORS: Final[dict[type[Any], tuple[str, str]]] = {
    RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
    TemperatureLogitsWarper: ("temperature", "temperature"),
    **{kind: (name, attribute) for name, (kind, attribute) in TRUNCATIONS.items()},
}
"""Processors in the order in which they act here: their setting, and which attribute has it."""
MODES: Final = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
OF_GENERATE: Final = ("logits_to_keep", "use_cache", "cache_position", "position_ids")
"""Arguments of a model that `generate` prepares, and that no prompt follows from."""


class CustomGenerate:
    """A `custom_generate` of the pair's risky model, whose tokens are those of a `Decoder`.

    pair.risky.generate(**inputs, custom_generate=CustomGenerate(decoder), do_sample=True). Prompts,
    attention mask, lengths, samples of a prompt, temperature, repetition penalty, top-k, top-p and
    min-p are those of `generate`, with its defaults (top_k=50, temperature 1, no penalty). Without
    do_sample no bound holds, with one warning. `generate` hands on neither streamers nor assistant
    models: they have no effect.
    """

    def __init__(self, decoder: Decoder, *, seed: int | None = None) -> None:
        """decoder: of tokens. seed: None takes one a call from torch's generator, which
        `transformers.set_seed` sets; ledgers record it. Raises ValueError for a pair that has no
        tokens in common."""
        if decoder.level.name != "token" or not decoder.pair.shares_tokens:
            raise ValueError("generate deals in tokens: the decoder's models must share theirs")
        self.decoder, self.seed = decoder, seed
        self.generations: list[Generation] = []
        """The generations of the last call, a row each, with their ledgers."""

    @in_plain_torch
    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **prepared: Any,
    ) -> Tensor:
        """(rows, longest) prompts and what follows them, padded to the right as by `generate`.

        Raises ValueError for what is not honored, by name, and AnchoredError where a row fails.
        """
        if model is not self.decoder.pair.risky:
            raise ValueError("generate must be called on the pair's risky model, pair.risky")
        mask = prepared.pop("attention_mask", None)
        mask = torch.ones_like(input_ids) if mask is None else mask
        ends = self.decoder.level.stop_token_ids
        _check(generation_config, stopping_criteria, prepared)
        self._check_ends(model.generation_config, stopping_criteria)
        if (num_samples := generation_config.num_return_sequences) < 1:
            raise ValueError(f"num_return_sequences must be >= 1, got {num_samples}")
        rows = zip(input_ids[::num_samples], mask[::num_samples].bool(), strict=True)
        seed = int(torch.randint(INT_LIMIT - 1, ())) if self.seed is None else self.seed
        self.generations = self.decoder.generate(
            [ids[kept].tolist() for ids, kept in rows],
            max_new_tokens=generation_config.max_length - input_ids.shape[1],
            num_return_sequences=num_samples,
            seed=seed,
            **_sampling(
                generation_config, self._followed(logits_processor), (mask != 0).int().argmax(1)
            ),
        )
        if error := next((one.error for one in self.generations if one.error), ""):
            raise AnchoredError(error)
        pad = generation_config.pad_token_id
        new = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(one.token_ids) for one in self.generations],
            batch_first=True,
            padding_value=[*ends, 0][0] if pad is None else pad,
        )
        return torch.cat([input_ids, new.to(input_ids)], dim=-1)

    def _followed(self, processors: LogitsProcessorList) -> list[LogitsProcessor]:
        """The processors without those whose tokens the pair's texts never have anyway."""
        banned = {*self.decoder.pair.banned_token_ids}
        return [one for one in processors if not (_suppressed(one) or {-1}) <= banned]

    def _check_ends(self, config: GenerationConfig, criteria: StoppingCriteriaList) -> None:
        """Raise ValueError unless texts are to end where they do here, or nothing was said of it:
        by `generate`'s default they end where the risky model's config says."""
        default = config.eos_token_id
        default = {*(default if isinstance(default, list) else [default])} - {None}
        ends = self.decoder.level.stop_token_ids
        named = [one.eos_token_id for one in criteria if isinstance(one, EosTokenCriteria)]
        chosen = {token for token_ids in named for token in token_ids.tolist()}
        if chosen not in (default, {*ends}):
            raise ValueError(
                f"generate with custom_generate does not honor eos_token_id={sorted(chosen)}: a "
                f"text ends at the end of text of either model, {ends}"
            )


def _suppressed(processor: LogitsProcessor) -> set[int]:
    """The tokens that a processor keeps out of texts, if it does nothing else."""
    if isinstance(processor, SuppressTokensLogitsProcessor):
        return {*processor.suppress_tokens.tolist()}
    words = processor.bad_word_ids if isinstance(processor, NoBadWordsLogitsProcessor) else []
    is_everywhere = all(len(word) == 1 for word in words)
    return {token for word in words for token in word} if is_everywhere else set()


def _sampling(
    config: GenerationConfig, processors: Iterable[LogitsProcessor], padding: Tensor
) -> dict[str, Any]:
    """The settings of warpers that the processors say, of the config or of the caller.

    padding: (rows,) the number of tokens before each prompt.
    """
    sampling: dict[str, Any] = {"repetition_penalty": 1.0, "temperature": 1.0}
    order = list(PROCESSORS)
    for processor in processors:
        kind = type(processor)
        if kind not in order:
            raise ValueError(
                f"{kind.__name__} is not supported here, or not after a later one: only "
                f"{', '.join(one.__name__ for one in PROCESSORS)} are, in this order"
            )
        order = order[order.index(kind) + 1 :]
        name, attribute = PROCESSORS[kind]
        sampling[name] = value = getattr(processor, attribute)
        plain = vars(kind(value))
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor) and torch.equal(ignored.cpu(), padding.cpu()):
            del plain["prompt_ignore_length"]  # of `generate` itself: prompts have no padding here
        if others := [key for key in plain if vars(processor)[key] != plain[key]]:
            raise ValueError(f"{kind.__name__} is not supported with another {others[0]}")
    return sampling if config.do_sample else {**sampling, "temperature": 0.0}


def _check(
    config: GenerationConfig, criteria: StoppingCriteriaList, prepared: Mapping[str, Any]
) -> None:
    """Raise ValueError, with its name, for what `generate` was asked for and would not get."""
    ignored = []
    if (mode := config.get_generation_mode()) not in MODES:
        ignored.append(f"the mode {mode.value}")
    if config.return_dict_in_generate:
        ignored.append("return_dict_in_generate (see generations for ledgers)")
    for criterion in criteria:
        kind = type(criterion)
        is_length = kind is MaxLengthCriteria and criterion.max_length == config.max_length
        if not is_length and kind is not EosTokenCriteria:
            ignored.append(kind.__name__)
    for name, value in prepared.items():
        is_empty = name == CACHE and value is not None and value.get_seq_length() == 0
        if not (is_empty or value is None or name in OF_GENERATE):
            ignored.append(name)
    if ignored:
        raise ValueError(f"generate with custom_generate does not honor {', '.join(ignored)}")
