"""Anchored Decoding: a strong language model inside an information budget of a safe one."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decode.byte.prompt_cache import PromptCache as PromptCache
    from .decode.byte.settings import ByteSettings as ByteSettings
    from .decode.custom_generate import CustomGenerate as CustomGenerate
    from .decode.decoder import Decoder as Decoder
    from .decode.generation import Generation as Generation
    from .decode.ledger import Ledger as Ledger
    from .decode.ledger import LedgerError as LedgerError
    from .decode.models.loading import LoadOptions as LoadOptions
    from .decode.models.model_pair import ModelPair as ModelPair
    from .decode.replay.verification import Verification as Verification
    from .decode.replay.verification import verify as verify
    from .decode.replay.verification import with_divergences as with_divergences
    from .decode.rules.anchored import Anchored as Anchored
    from .decode.rules.anchored import NoOpt as NoOpt
    from .decode.rules.budget import PromptRatios as PromptRatios
    from .decode.rules.event_bound import event_bound as event_bound
    from .decode.rules.memfree import MemFree as MemFree
    from .decode.rules.mixtures import RCAD as RCAD
    from .decode.rules.mixtures import CPFuse as CPFuse
    from .decode.rules.one_model import ColdStart as ColdStart
    from .decode.rules.one_model import GlobalSwitch as GlobalSwitch
    from .decode.rules.one_model import RiskyOnly as RiskyOnly
    from .decode.rules.one_model import SafeOnly as SafeOnly
    from .decode.rules.one_model import System as System
    from .decode.rules.token_swap import TokenSwap as TokenSwap
    from .decode.vllm import engine

    vllm = engine

__version__ = "0.1.0"


class AnchoredError(RuntimeError):
    """A request failed because of its input or the machine; the first line is the reason.

    Arguments that are wrong by themselves are ValueErrors; any other RuntimeError is a bug.
    """


_HOME = {
    "ByteSettings": "decode.byte.settings",
    "CustomGenerate": "decode.custom_generate",
    "Decoder": "decode.decoder",
    "Generation": "decode.generation",
    "Ledger": "decode.ledger",
    "LedgerError": "decode.ledger",
    "LoadOptions": "decode.models.loading",
    "ModelPair": "decode.models.model_pair",
    "Anchored": "decode.rules.anchored",
    "CPFuse": "decode.rules.mixtures",
    "ColdStart": "decode.rules.one_model",
    "GlobalSwitch": "decode.rules.one_model",
    "MemFree": "decode.rules.memfree",
    "NoOpt": "decode.rules.anchored",
    "PromptCache": "decode.byte.prompt_cache",
    "PromptRatios": "decode.rules.budget",
    "RCAD": "decode.rules.mixtures",
    "RiskyOnly": "decode.rules.one_model",
    "SafeOnly": "decode.rules.one_model",
    "System": "decode.rules.one_model",
    "TokenSwap": "decode.rules.token_swap",
    "Verification": "decode.replay.verification",
    "event_bound": "decode.rules.event_bound",
    "verify": "decode.replay.verification",
    "with_divergences": "decode.replay.verification",
}

__all__ = ["AnchoredError", *_HOME]


if not TYPE_CHECKING:  # or a name that does not exist would have a type

    def __getattr__(name: str) -> Any:
        """Public names are imported at first use: `import anchored` loads neither torch nor models.

        `anchored.vllm` is a module, of the extra of that name."""
        if name == "vllm":
            return importlib.import_module(".decode.vllm.engine", __name__)
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
