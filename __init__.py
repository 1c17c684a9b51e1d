"""Anchored Decoding: a strong language model inside an information budget of a safe one."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decode.byte.byte_row import PromptCache as PromptCache
    from .decode.custom_generate import CustomGenerate as CustomGenerate
    from .decode.decoder import Decoder as Decoder
    from .decode.event_bound import event_bound as event_bound
    from .decode.generation import Generation as Generation
    from .decode.ledger import Ledger as Ledger
    from .decode.ledger import LedgerError as LedgerError
    from .decode.pair.loading import LoadOptions as LoadOptions
    from .decode.pair.model_pair import ModelPair as ModelPair
    from .decode.rules.anchored import Anchored as Anchored
    from .decode.rules.anchored import NoOpt as NoOpt
    from .decode.rules.anchored import Pathwise as Pathwise
    from .decode.rules.anchored import SafeOnly as SafeOnly
    from .decode.rules.budget import PromptRatios as PromptRatios
    from .decode.rules.memfree import MemFree as MemFree
    from .decode.rules.mixtures import RCAD as RCAD
    from .decode.rules.mixtures import CPFuse as CPFuse
    from .decode.rules.mixtures import TokenSwap as TokenSwap
    from .decode.rules.unbounded import ColdStart as ColdStart
    from .decode.rules.unbounded import GlobalSwitch as GlobalSwitch
    from .decode.rules.unbounded import RiskyOnly as RiskyOnly
    from .decode.rules.unbounded import System as System
    from .decode.verify.verification import Verification as Verification
    from .decode.verify.verification import verify as verify
    from .decode.verify.verification import with_divergences as with_divergences
    from .decode.vllm import engine
    from .errors import AnchoredError as AnchoredError

    vllm = engine

__version__ = "0.1.0"


_NAMES = {
    "decode.byte.byte_row": "PromptCache",
    "decode.custom_generate": "CustomGenerate",
    "decode.decoder": "Decoder",
    "decode.generation": "Generation",
    "decode.ledger": "Ledger LedgerError",
    "decode.pair.loading": "LoadOptions",
    "decode.pair.model_pair": "ModelPair",
    "decode.rules.anchored": "Anchored NoOpt Pathwise SafeOnly",
    "decode.rules.budget": "PromptRatios",
    "decode.event_bound": "event_bound",
    "decode.rules.memfree": "MemFree",
    "decode.rules.mixtures": "CPFuse RCAD TokenSwap",
    "decode.rules.unbounded": "ColdStart GlobalSwitch RiskyOnly System",
    "decode.verify.verification": "Verification verify with_divergences",
    "errors": "AnchoredError",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOME]


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
