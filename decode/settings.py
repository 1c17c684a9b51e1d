"""What a caller chooses, as plain values, and how both models' distributions are warped."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from ..fields import check_fields, converted

LevelName = Literal["token", "byte"]
"""The unit that is decoded and budgeted step by step."""

Speculate = Literal["auto", "off"] | int
"""Tokens of a draft, as many as it is worth, or none."""

Divergence = Literal["kl", "max"]
"""KL(p* || p_s), or the largest log-ratio of both."""

Charge = Literal["mean", "worst", "drawn"]
"""The log-ratio of p* to p_s that a step costs: its mean over p*, which is KL(p* || p_s), that of
the worst token, or that of the token that was drawn."""

DebtMode = Literal["top", "average", "none"]
Schedule = Literal["adaptive", "global", "fixed"]


class RequestError(ValueError):
    """Says what is wrong with one request; of several, it fails alone."""


def checked_text(name: str, value: Any) -> str:
    """A text that a caller gives; RequestError for anything else, and for a lone surrogate."""
    try:
        text: str = converted(name, value, str)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return text


_HINTS = {
    "input_ids attention_mask token_type_ids inputs": "give what the tokenizer returns as the "
    "prompts, generate(tokenizer(text)), or lists of token ids",
    "inputs_embeds": "give texts or token ids as the prompts",
    "prompt prompts text texts": "generate has prompts, its first argument, and stream one prompt",
    "do_sample": "tokens are sampled, and temperature=0 takes the most likely ones",
    "max_length": "give max_new_tokens, which does not count the prompt",
    "max_tokens max_completion_tokens": "give max_new_tokens",
    "min_length min_new_tokens min_tokens": "a text ends where a model ends it",
    "stop_strings stop_sequences": "give stop=, one text or several",
    "eos_token_id stop_token_ids ignore_eos": "a text ends at the end of text of either model; "
    "give stop= for other ends",
    "n best_of": "give num_return_sequences",
    "num_beams num_beam_groups length_penalty early_stopping use_beam_search": "tokens are sampled "
    "one by one, and num_return_sequences gives several texts",
    "streamer": "call stream(prompt), which yields pieces",
    "stopping_criteria": "give stop= and max_new_tokens, or leave a stream where it shall end",
    "logits_processor logits_processors logit_bias prefix_allowed_tokens_fn typical_p": "what "
    "chooses tokens is a rule or one of temperature, repetition_penalty, top_k, top_p, min_p",
    "bad_words_ids no_repeat_ngram_size": "the rule MemFree keeps n-grams out",
    "frequency_penalty presence_penalty": "give repetition_penalty",
    "logprobs prompt_logprobs output_scores output_logits return_dict_in_generate": "the steps of "
    "a result's ledger have log_prob and safe_log_prob, and score() those of a given text",
    "assistant_model prompt_lookup_num_tokens": "Decoder(pair, rule, speculate=...) drafts",
    "generator random_seed": "give seed=",
    "sampling_params": "give its values by their names",
    "return_full_text skip_special_tokens": "result.text is the continuation alone",
    "use_tqdm": "give progress=",
    "K divergence debt debt_window budget bank": "it is the rule's, as Anchored(k=1.5, ...)",
    "level batch_size speculate": "it is the decoder's, Decoder(pair, rule, ...)",
    "torch_dtype": "write dtype=",
    "device_map": "write risky_options=LoadOptions(device_map=...), or device=",
    "revision": "write safe_options=LoadOptions(revision=...), and the same of risky_options",
    "attn_implementation": "write safe_options=LoadOptions(attn_implementation=...) or "
    "risky_options=",
    "quantization_config load_in_8bit load_in_4bit": "write risky_quantization=, a config of "
    "transformers",
    "trust_remote_code": "remote code is never run",
    "use_safetensors": "weights are always safetensors",
    "token use_auth_token": "log in by `hf auth login`",
    "cache_dir": "set HF_HOME",
    "tokenizer": "each model brings its tokenizer; ModelPair(safe, risky, tokenizer) takes one",
}
HINTS = {name: hint for names, hint in _HINTS.items() for name in names.split()}
"""Names that callers of other libraries write, and what they are called here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """Warpers, in the order in which they act; each acts on both models alike."""

    temperature: float = 0.7
    """Number that divides the logits; 0 takes the most likely token of p* and certifies nothing."""
    repetition_penalty: float = 1.1
    """Number that divides the positive and multiplies the negative logits of tokens seen before
    (Keskar et al. 2019); 1 changes none."""
    top_k: int = 0
    """Tokens of each model that are kept, the most likely ones; 0 keeps all."""
    top_p: float = 1.0
    """Mass of the smallest set of tokens that is kept, in (0, 1] (Holtzman et al. 2020); 1 keeps
    all."""
    min_p: float = 0.0
    """Share of the most likely token's probability below which tokens are dropped, in [0, 1); 0
    keeps all."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ValueError(f"repetition_penalty must be > 0, got {self.repetition_penalty}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be in [0, 1), got {self.min_p}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "SamplingConfig":
        """From settings by name, where None is the default; ValueError for an unknown one."""
        for name in settings:
            if name not in SAMPLING_NAMES:
                hint = HINTS.get(name, f"allowed are {', '.join(SAMPLING_NAMES)}")
                raise ValueError(f"unknown sampling setting {name!r}: {hint}")
        return cls(**{name: value for name, value in settings.items() if value is not None})

    @property
    def is_greedy(self) -> bool:
        """Nothing is sampled, so no bound can hold."""
        return self.temperature == 0

    @property
    def untruncated(self) -> "SamplingConfig":
        """The same without what drops tokens."""
        return replace(self, **KEEPS_ALL)

    @property
    def is_truncating(self) -> bool:
        """Some tokens get no probability."""
        return any(getattr(self, name) != value for name, value in KEEPS_ALL.items())

    def as_dict(self) -> dict[str, float | int]:
        """The settings as plain JSON values."""
        return asdict(self)


KEEPS_ALL: Mapping[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The settings that drop tokens, with the values at which they drop none."""

SAMPLING_NAMES = tuple(field.name for field in fields(SamplingConfig))
"""The settings of a SamplingConfig, in the order in which they act."""

UNWARPED = SamplingConfig(temperature=1.0, repetition_penalty=1.0)
"""The models' distributions as they are."""

FLAT = "flat"
"""Marks, in Annotated, a field of options whose names on a command line have no prefix."""

REPEATED = "repeated"
"""Marks an option of a command line that is given once for each of its values."""

MODEL = "model"
"""Marks an option that names a folder or a Hub id, which stays as it was typed."""

DEFAULT_K = 1.5
"""Nats per step where a command or a request names neither k nor K."""


# Both classes have no slots, so that options may have one of them as a second base.
@dataclass(frozen=True)
class BudgetSize:
    """The size of a budget, by one of two numbers."""

    k: float | None = None
    """Budget in nats per token, or per byte at byte level: K = k * horizon, and the bank. Commands
    take 1.5 unless K is named, and 1 for the rule pathwise."""
    K: float | None = field(default=None, kw_only=True)
    """Budget in nats of the whole text, in place of k."""


@dataclass(frozen=True, kw_only=True)
class DebtOptions:
    """The debt of a prompt, nats that are not there for its continuation."""

    debt: DebtMode = "top"
    """Nats that the prompt's log-likelihood ratios cost before the first token: top charges the
    mean of the largest, average that of all, none nothing."""
    debt_window: int = 5
    """Tokens of the prompt whose ratios the top debt is the mean of."""


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(DebtOptions):
    """The way in which a budget of any size is counted and spent."""

    budget: Schedule = "adaptive"
    """Use of unspent nats: adaptive carries them over, global frees all of them from the start,
    fixed loses them, and charges no debt."""
    bank: float | None = None
    """Nats of a bucket that is full at the start, gets k per token and holds no more, so that K =
    bank + k * horizon and any w tokens in a row spend at most bank + w k; without one, adaptive
    carries over all that is left of K = k * horizon. The rule pathwise has one of 20 nats unless
    another is named."""
    divergence: Divergence = "kl"
    """Divergence that each step spends and the budget bounds: kl the mean log-ratio of p* to the
    safe model, max its largest value."""

    def budget_options(self) -> dict[str, Any]:
        """These options by name, to make a rule of."""
        return {each.name: getattr(self, each.name) for each in fields(BudgetOptions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteSettings:
    """The cost of a byte at byte level; ledgers record it. No distribution depends on
    it."""

    prefetch: int = 4
    """Likely continuations that each forward computes ahead of the text, 0 for none. With 4 of them
    one text takes a third less time on a CPU, and eight texts take 2 % more."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prefetch < 0:
            raise ValueError(f"prefetch must be >= 0, got {self.prefetch}")
