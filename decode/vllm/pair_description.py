"""A pair without weights, as every process of an engine knows it: facts, the rule, the journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig

from ...errors import in_one_line
from ..levels.level import TokenLevel
from ..pair.folder import ModelFolder, fingerprint
from ..pair.loading import load_config, load_tokenizer
from ..pair.model_pair import ModelPair
from ..rules.anchored import Anchored, Pathwise
from ..rules.rule import Rule

PairRule = Anchored | Pathwise
"""The rules that draw inside vLLM."""

KEY = "anchored"
"""The entry of vLLM's `additional_config`, and of each request's `extra_args`, that is ours."""

NOT_OURS = "vLLM draws for a pair by anchored.vllm.open_pair or anchored serve --engine vllm alone"

ONE_PROMPT = (
    "the models would read different prompts, as their chat templates differ or there is a "
    "passage: in vLLM both read one; a Decoder with Transformers can do it"
)


def checked_rule(rule: Rule) -> PairRule:
    """The rule; ValueError for one that does not draw inside vLLM."""
    if not isinstance(rule, PairRule):
        raise ValueError(f"in vLLM the rule must be Anchored(...) or Pathwise(...), got {rule!r}")
    return rule


class DescribedPair(ModelPair):
    """A pair without weights: configs and tokenizers only."""

    @classmethod
    def of(
        cls,
        safe: str | Path,
        risky: str | Path,
        revisions: tuple[str | None, str | None] = (None, None),
        *,
        allow_quantized_safe: bool,
    ) -> "DescribedPair":
        """Read configs and tokenizers of two Hugging Face folders or Hub ids.

        revisions: branch, tag or commit of each Hub id. Raises FileNotFoundError for what is none,
        ValueError for an adapter (vLLM loads no merged ones) and for a quantized safe model unless
        it is allowed.
        """
        named = zip(("safe", "risky"), (safe, risky), revisions, strict=True)
        folders = {name: ModelFolder.find(model, revision) for name, model, revision in named}
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

    def computes_in(self, dtype: Any) -> None:
        """Note the dtype that the engine has chosen for both models."""
        models: dict[str, Any] = self.models
        for model in models.values():
            model.dtype = dtype

    def _check_models(self) -> None:
        """Nothing is run, as vLLM loads the models."""


def _described(folder: Path) -> SimpleNamespace:
    """A model as a `ModelPair` knows it before it runs it; the engine decides the dtype."""
    config = load_config(folder)
    if (folder / "generation_config.json").is_file():
        with in_one_line(f"the generation_config in {folder} cannot be read"):
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
    """Ids below `vocab_size` that no text draws."""
    missing_token_ids: list[int]
    """Ids that no prompt may hold, as one tokenizer lacks them."""
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
            banned_token_ids=level.banned_token_ids,
            missing_token_ids=list(shared.banned_token_ids),
            level_settings=level.settings(),
            stop_token_ids=level.stop_token_ids,
            special_token_ids=list(level.special_token_ids),
            context_length=level.context_length,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """The facts, and where the journal goes; JSON on its way to other processes."""

    facts: PairFacts
    journal: str
    """Folder of journals."""
    max_bytes: int
    """Bytes of one file of the journal, after which the next one begins."""
    is_synced: bool
    """Each line is on the disk before a token leaves."""

    @classmethod
    def of(cls, additional_config: Mapping[str, Any]) -> "EngineSettings":
        """Those of an engine; ValueError where it was not started by us."""
        if KEY not in additional_config:
            raise ValueError(NOT_OURS)
        options = dict(additional_config[KEY])
        return cls(facts=PairFacts(**options.pop("facts")), **options)
