"""What every process of an engine knows of its pair: facts of the models, limits of the server."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..ledger import field_error
from ..rules.anchored import Anchored
from ..rules.budget import Schedule, checked_nats
from ..rules.prefix_debt import DebtMode
from ..rules.rule import Divergence
from ..settings import check_choice

KEY = "anchored"
"""Of vLLM's `additional_config`, under which the settings travel to its processes."""

REQUEST_PREFIX = "anchored_"
"""Of a request's extra arguments that are for us."""

ModelName = Literal["safe", "risky"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFacts:
    """What a ledger says of a pair, and what decides its symbols; no weights are read for it."""

    safe: str
    """Folder of the safe model."""
    risky: str
    fingerprints: dict[str, str]
    quantization: dict[str, str]
    vocab_size: int
    banned_token_ids: list[int]
    """Ids below `vocab_size` that one tokenizer lacks."""
    is_whole: bool
    """Both tokenizers know the same ids, without gaps."""
    stop_token_ids: list[int]
    special_token_ids: list[int]
    context_length: int | None

    @classmethod
    def of(cls, safe: str | Path, risky: str | Path, *, allow_quantized_safe: bool) -> "PairFacts":
        """Read configs and tokenizers of two Hugging Face folders or Hub ids.

        Raises FileNotFoundError for what is none, ValueError for a pair without shared tokens, for
        an adapter (vLLM loads no merged ones), for a quantised safe model unless it is allowed, and
        for two quantised models.
        """
        from ..models.folder import fingerprint
        from ..models.loading import load_tokenizer, quantization_method
        from ..models.model_pair import context_of, own_stop_tokens
        from ..models.shared_tokens import shared_tokens

        folders = {"safe": _folder(safe), "risky": _folder(risky)}
        configs = {name: _configs(folder.base) for name, folder in folders.items()}
        tokenizers = {name: load_tokenizer(folder.tokenizer) for name, folder in folders.items()}
        methods = {name: quantization_method(own[0]) for name, own in configs.items()}
        if methods["safe"] and not allow_quantized_safe:
            raise ValueError(
                f"the safe model is quantised ({methods['safe']}), so the bound would hold against "
                "another model than the original: allow_quantized_safe accepts that"
            )
        if all(methods.values()):
            raise ValueError(
                f"both models are quantised ({methods['safe']}, {methods['risky']}): in vLLM only "
                "one of a pair can be"
            )
        shared = shared_tokens(tokenizers["safe"], tokenizers["risky"])
        if shared.difference:
            raise ValueError(
                f"the models have different tokenizers: {shared.difference}; "
                "in vLLM a pair is decoded in tokens that both share"
            )
        lengths = [context_of(config.get_text_config()) for config, _ in configs.values()]
        stops = {t for n, own in configs.items() for t in own_stop_tokens(*own, tokenizers[n])}
        return cls(
            safe=str(folders["safe"].base),
            risky=str(folders["risky"].base),
            fingerprints={name: fingerprint(folder) for name, folder in folders.items()},
            quantization={name: method for name, method in methods.items() if method},
            vocab_size=shared.vocab_size,
            banned_token_ids=list(shared.banned_token_ids),
            is_whole=shared.is_whole,
            stop_token_ids=sorted(token for token in stops if shared.has(token)),
            special_token_ids=sorted({t for o in tokenizers.values() for t in o.all_special_ids}),
            context_length=min(filter(None, lengths), default=None),
        )

    @property
    def level_settings(self) -> dict[str, Any]:
        """As of `TokenLevel.settings`."""
        if self.is_whole:
            return {}
        return {"vocab_size": self.vocab_size, "banned_token_ids": self.banned_token_ids}


def _folder(name: str | Path) -> Any:
    from ..models.folder import ModelFolder

    folder = ModelFolder.find(name)
    if folder.adapter is not None:
        raise ValueError(f"{name} is an adapter: merge it into its base model for vLLM")
    return folder


def _configs(folder: Path) -> tuple[Any, Any]:
    """The config of a model and its generation config."""
    from transformers import GenerationConfig

    from ..models.loading import load_config

    config = load_config(folder)
    if (folder / "generation_config.json").is_file():
        return config, GenerationConfig.from_pretrained(folder)
    return config, GenerationConfig.from_model_config(config)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a request gets where it asks for nothing, and the most it can ask for; nats."""

    default_k: float = 1.5
    max_k: float | None = None
    """Nats a step; with the horizon it bounds K = k * max_tokens too. None for no limit."""
    max_total: float | None = None
    """Nats of one text, K."""
    max_horizon: int | None = None
    """Most new tokens of a request."""
    divergence: Divergence = "kl"
    debt: DebtMode = "top"
    debt_window: int = 5
    budget: Schedule = "adaptive"

    def __post_init__(self) -> None:
        for name in ("default_k", "max_k", "max_total"):
            if (nats := getattr(self, name)) is not None:
                checked_nats(name, nats)
        if self.max_horizon is not None and self.max_horizon < 1:
            raise ValueError(f"max_horizon must be >= 1, got {self.max_horizon}")
        if self.max_k is not None and self.default_k > self.max_k:
            raise ValueError(f"default_k {self.default_k:g} is above max_k {self.max_k:g}")
        self.rule()

    def rule(
        self,
        *,
        k: float | None = None,
        total: float | None = None,
        divergence: Divergence | None = None,
    ) -> Anchored:
        """The rule of a request that asks for these; ValueError for values that no rule has."""
        return Anchored(
            k=self.default_k if k is None and total is None else k,
            K=total,
            divergence=divergence or self.divergence,
            debt=self.debt,
            debt_window=self.debt_window,
            budget=self.budget,
        )


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
        return cls(
            facts=PairFacts(**given["facts"]),
            limits=Limits(**given["limits"]),
            journal=given["journal"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the extra arguments of a request ask for."""

    k: float | None = None
    """Nats a step; K = k * max_tokens."""
    K: float | None = None
    """Nats for the whole text, in place of k."""
    divergence: Divergence | None = None
    seed: int | None = None
    """In place of vLLM's own `seed`, which counts too."""
    debt: float = 0.0
    """Nats that the prompt owes at least: the debt that is computed can only be raised."""

    def __post_init__(self) -> None:
        if self.k is not None and self.K is not None:
            raise ValueError(f"give either k or K, got k={self.k} and K={self.K}")
        for name in ("k", "K"):
            if (nats := getattr(self, name)) is not None:
                checked_nats(name, nats)
        if not (self.debt >= 0.0 and not math.isnan(self.debt)):
            raise ValueError(f"debt must be >= 0 nats, got {self.debt}")
        if self.divergence is not None:
            check_choice("divergence", self.divergence, ("kl", "max"))

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
            raise ValueError(f"anchored: {error}; known are k, K, divergence, seed, debt")
        return cls(**given)
