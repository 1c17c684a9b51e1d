"""The settings that every process of an engine has: facts of the models, limits of the server."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig

from ...field_types import field_error
from ..levels.level import TokenLevel
from ..models.folder import ModelFolder, fingerprint
from ..models.loading import load_config, load_tokenizer, quantization_method
from ..models.model_pair import ModelPair
from ..rules.anchored import Anchored
from ..rules.budget import checked_nats
from ..rules.rule import Divergence

KEY = "anchored"
"""The entry of vLLM's `additional_config` in which the settings travel to its processes."""

REQUEST_PREFIX = "anchored_"
"""Begins the names of a request's extra arguments that are for us."""

DEFAULT_RULE = Anchored(k=1.5)
"""The rule of requests that ask for nothing, where no other is given."""


class DescribedPair(ModelPair):
    """A pair as its folders describe it, without weights: what is asked of it is made by this."""

    @classmethod
    def of(
        cls, safe: str | Path, risky: str | Path, *, allow_quantized_safe: bool
    ) -> "DescribedPair":
        """Read configs and tokenizers of two Hugging Face folders or Hub ids.

        Raises FileNotFoundError for what is none, ValueError for an adapter (vLLM loads no merged
        ones) and for a quantized safe model unless it is allowed.
        """
        folders = {"safe": ModelFolder.find(safe), "risky": ModelFolder.find(risky)}
        for folder in folders.values():
            if folder.adapter is not None:
                raise ValueError(
                    f"{folder.adapter} is an adapter: merge it into its base model for vLLM"
                )
        models: dict[str, Any] = {name: _described(folder.base) for name, folder in folders.items()}
        tokenizers = {name: load_tokenizer(folder.tokenizer) for name, folder in folders.items()}
        return cls(
            models["safe"],
            models["risky"],
            tokenizers["safe"],
            {name: fingerprint(folder) for name, folder in folders.items()},
            risky_tokenizer=tokenizers["risky"],
            allow_quantized_safe=allow_quantized_safe,
        )

    def _check_model(self, name: str, model: Any) -> None:
        """Note how its folder is quantized; nothing is run, as vLLM loads the models."""
        if method := quantization_method(model.config):
            self.quantization[name] = method


def _described(folder: Path) -> SimpleNamespace:
    """A model as a `ModelPair` knows it before it runs it; the engine decides the dtype."""
    config = load_config(folder)
    if (folder / "generation_config.json").is_file():
        generation_config = GenerationConfig.from_pretrained(folder)
    else:
        generation_config = GenerationConfig.from_model_config(config)
    return SimpleNamespace(
        folder=folder, config=config, generation_config=generation_config, dtype=None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFacts:
    """The facts of a pair that ledgers hold and that decide its symbols; no weights are read."""

    safe: str
    """Folder of the safe model."""
    risky: str
    fingerprints: dict[str, str]
    quantization: dict[str, str]
    vocab_size: int
    banned_token_ids: list[int]
    """Ids below `vocab_size` that one tokenizer lacks."""
    level_settings: dict[str, Any]
    stop_token_ids: list[int]
    special_token_ids: list[int]
    context_length: int | None

    @classmethod
    def of(cls, pair: DescribedPair) -> "PairFacts":
        """Facts of a pair; ValueError for one without shared tokens, or quantized twice."""
        methods, shared = pair.quantization, pair.shared
        if len(methods) == len(pair.models):
            raise ValueError(
                f"both models are quantized ({methods['safe']}, {methods['risky']}): in vLLM only "
                "one of a pair can be"
            )
        if shared.difference:
            raise ValueError(
                f"the models have different tokenizers: {shared.difference}; "
                "in vLLM a pair is decoded in tokens that both share"
            )
        level = TokenLevel(pair)
        return cls(
            safe=str(pair.safe.folder),
            risky=str(pair.risky.folder),
            fingerprints=pair.fingerprints,
            quantization=methods,
            vocab_size=level.vocab_size,
            banned_token_ids=list(shared.banned_token_ids),
            level_settings=level.settings(),
            stop_token_ids=level.stop_token_ids,
            special_token_ids=list(level.special_token_ids),
            context_length=level.context_length,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The rule of a request that asks for nothing, and the most that it can ask for; nats."""

    rule: Anchored = DEFAULT_RULE
    """The rule of requests that ask for nothing."""
    max_k: float | None = None
    """Nats a step; with the horizon it bounds K = k * max_tokens too. None for no limit."""
    max_total: float | None = None
    """Nats of one text, K."""
    max_horizon: int | None = None
    """Most new tokens of a request."""

    def __post_init__(self) -> None:
        for name in ("max_k", "max_total"):
            if (nats := getattr(self, name)) is not None:
                checked_nats(name, nats)
        if self.max_horizon is not None and self.max_horizon < 1:
            raise ValueError(f"max_horizon must be >= 1, got {self.max_horizon}")
        if self.max_k is not None and self.rule.k is not None and self.rule.k > self.max_k:
            raise ValueError(f"k {self.rule.k:g} of the rule is above max_k {self.max_k:g}")

    def rule_of(self, asked: "Asked") -> Anchored:
        """The rule of a request that asks for these; ValueError for values that no rule has."""
        rule = replace(self.rule, divergence=asked.divergence or self.rule.divergence)
        is_asked = asked.k is not None or asked.K is not None
        return replace(rule, k=asked.k, K=asked.K) if is_asked else rule


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """Facts and limits, and where the journal goes; JSON on its way to other processes."""

    facts: PairFacts
    limits: Limits = field(default_factory=Limits)
    journal: str
    """Folder of journals."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `additional_config`."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def of(cls, additional_config: Mapping[str, Any]) -> "EngineSettings":
        """Those of an engine; ValueError where it was not started by us."""
        if KEY not in additional_config:
            raise ValueError(
                "this engine was not started for a pair: use anchored.vllm.open_pair or "
                "anchored vllm serve"
            )
        given = additional_config[KEY]
        limits = given["limits"]
        return cls(
            facts=PairFacts(**given["facts"]),
            limits=Limits(**{**limits, "rule": Anchored(**limits["rule"])}),
            journal=given["journal"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The wishes in the extra arguments of a request."""

    k: float | None = None
    """Nats a step; K = k * max_tokens."""
    K: float | None = None
    """Nats for the whole text, in place of k."""
    divergence: Divergence | None = None
    seed: int | None = None
    """In place of vLLM's `seed`, which counts too."""
    debt: float = 0.0
    """Nats that the prompt owes at least: the debt that is computed can only be raised."""
    sample: int = 0
    """Texts of this prompt and seed before it, which it is drawn independently of."""

    def __post_init__(self) -> None:
        Limits().rule_of(self)  # ValueError for what no rule has
        if not self.debt >= 0.0:
            raise ValueError(f"debt must be >= 0 nats, got {self.debt}")
        if self.sample < 0:
            raise ValueError(f"sample must be >= 0, got {self.sample}")

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> "Asked":
        """From a request's extra arguments, those of other programs left out.

        Raises ValueError, in one line, for an unknown or a wrong one.
        """
        given = {
            name.removeprefix(REQUEST_PREFIX): value
            for name, value in (extra_args or {}).items()
            if name.startswith(REQUEST_PREFIX) and value is not None
        }
        if error := field_error(cls, given):
            raise ValueError(f"anchored: {error}; known are k, K, divergence, seed, debt, sample")
        return cls(**given)
