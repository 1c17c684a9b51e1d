"""Decoding from inside `generate` of transformers: model.generate(..., custom_generate=...)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .. import AnchoredError
from .decoder import Decoder
from .engine.request import MAX_SEED
from .generation import Generation
from .models.stream import CACHE

PROCESSORS: Final = {
    RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
}
"""Processors in the order in which they act here: their setting, and which attribute has it."""
MODES: Final = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
OF_GENERATE: Final = ("logits_to_keep", "use_cache", "cache_position")
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
        """decoder: of tokens. seed: unless given, each call takes one from torch's generator, which
        `transformers.set_seed` sets; ledgers record it. Raises ValueError for a pair that has no
        tokens in common.
        """
        if decoder.level.name != "token" or not decoder.pair.shares_tokens:
            raise ValueError("generate deals in tokens: the decoder's models must share theirs")
        self.decoder, self.seed = decoder, seed
        self.generations: list[Generation] = []
        """The generations of the last call, a row each, with their ledgers."""

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

        Raises ValueError, with its name, for what would not be honored, and AnchoredError where
        a row fails.
        """
        if model is not self.decoder.pair.risky:
            raise ValueError("generate must be called on the pair's own risky model, pair.risky")
        mask = prepared.pop("attention_mask", None)
        mask = torch.ones_like(input_ids) if mask is None else mask
        ends = self.decoder.level.stop_token_ids
        _check(generation_config, stopping_criteria, prepared, mask, ends)
        num_samples = generation_config.num_return_sequences
        rows = zip(input_ids[::num_samples], mask[::num_samples].bool(), strict=True)
        seed = int(torch.randint(MAX_SEED - 1, ())) if self.seed is None else self.seed
        self.generations = self.decoder.generate(
            [ids[kept].tolist() for ids, kept in rows],
            max_new_tokens=generation_config.max_length - input_ids.shape[1],
            num_return_sequences=num_samples,
            seed=seed,
            **_sampling(generation_config, logits_processor),
        )
        if error := next((own.error for own in self.generations if own.error), ""):
            raise AnchoredError(error)
        pad = generation_config.pad_token_id
        new = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(own.token_ids) for own in self.generations],
            batch_first=True,
            padding_value=[*ends, 0][0] if pad is None else pad,
        )
        return torch.cat([input_ids, new.to(input_ids)], dim=-1)


def _sampling(config: GenerationConfig, processors: LogitsProcessorList) -> dict[str, Any]:
    """The settings of warpers that the processors say, of the config's or of the caller's own."""
    sampling: dict[str, Any] = {"repetition_penalty": 1.0, "temperature": 1.0}
    order = list(PROCESSORS)
    for processor in processors:
        kind = type(processor)
        if kind not in order:
            raise ValueError(
                f"{kind.__name__} is not supported here, or not after a later one: only "
                f"{', '.join(own.__name__ for own in PROCESSORS)} are, in this order"
            )
        order = order[order.index(kind) + 1 :]
        name, attribute = PROCESSORS[kind]
        sampling[name] = getattr(processor, attribute)
        if isinstance(getattr(processor, "prompt_ignore_length", None), int):
            raise ValueError("prompt_ignore_length is not supported: the penalty reads the prompt")
    return sampling if config.do_sample else {**sampling, "temperature": 0.0}


def _check(
    config: GenerationConfig,
    criteria: StoppingCriteriaList,
    prepared: Mapping[str, Any],
    mask: Tensor,
    ends: Sequence[int],
) -> None:
    """Raise ValueError, with its name, for what `generate` was asked for and would not get."""
    asked = []
    if (mode := config.get_generation_mode()) not in MODES:
        asked.append(f"the mode {mode.value}")
    if config.return_dict_in_generate:
        asked.append("return_dict_in_generate (see generations for ledgers)")
    for own in criteria:
        if isinstance(own, EosTokenCriteria) and set(own.eos_token_id.tolist()) <= set(ends):
            continue
        asked += [] if isinstance(own, MaxLengthCriteria) else [type(own).__name__]
    for name, value in prepared.items():
        if name == CACHE:
            is_default = value is None or value.get_seq_length() == 0
        elif name == "position_ids":
            expected = mask.cumsum(-1) - 1
            is_default = value is None or bool((value == expected)[mask.bool()].all())
        else:
            is_default = value is None or name in OF_GENERATE
        asked += [] if is_default else [name]
    if asked:
        raise ValueError(f"generate with custom_generate does not honor {', '.join(asked)}")
