"""Check a ledger against its models: anchored verify --safe A --risky B --ledger FILE"""

from dataclasses import dataclass
from pathlib import Path

from anchored import Ledger, verify

from .pair_options import load_pair


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """Replays every step: figures, bound, and each token from its seed."""

    safe: Path
    """Hugging Face folder or Hub id of the safe model."""
    risky: Path
    """Hugging Face folder or Hub id of the risky model."""
    ledger: Path
    """File that anchored generate or Ledger.save wrote."""
    dtype: str = "auto"
    """As it was when the ledger was made."""
    device: str | None = None
    """cpu, cuda, ...; CUDA where there is one unless given."""


def run(config: VerifyConfig) -> int:
    """Print the verdict; status 0 when the ledger stands, 1 when it does not."""
    ledger = Ledger.load(config.ledger)
    pair = load_pair(config.safe, config.risky, dtype=config.dtype, device=config.device)
    report = verify(ledger, pair)
    print(report)
    for failure in report.failures:
        print(f"  {failure}")
    return 0 if report.is_ok else 1
