"""The command that replays a ledger against its models."""

from dataclasses import dataclass
from pathlib import Path

import anchored

from .options import ModelOptions, is_first_process


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig(ModelOptions):
    """Check a ledger against its models: anchored verify --safe A --risky B --ledger FILE

    Replays every step: figures, bound, and each token from its seed.
    """

    ledger: Path
    """File that anchored generate or Ledger.save wrote."""


def run(config: VerifyConfig) -> int:
    """Print the verdict; status 0 when the ledger stands, 1 when it does not."""
    ledger = anchored.Ledger.load(config.ledger)
    report = anchored.verify(ledger, config.pair())
    if is_first_process():
        print(report, *(f"  {failure}" for failure in report.failures), sep="\n")
    return 0 if report.is_ok else 1
