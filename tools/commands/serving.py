"""The commands that serve a pair, by vLLM or on a page, and make ledgers of what was served."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchored.decode.pair_options import ModelOptions
from anchored.inputs import check_input

from .files import check_outputs
from .words import parse_known


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """Serve a pair by vLLM: anchored vllm serve --safe A --risky B --ledgers DIR --port 8000

    Starts an OpenAI server; all other options are those of vllm serve, as --tensor-parallel-size 8.
    Needs pip install 'anchored[vllm]'. The page docs/serving.md says what a request may ask for and
    what an answer says.
    """

    safe: Path
    """Hugging Face folder or Hub id of the safe model."""
    risky: Path
    """Hugging Face folder or Hub id of the risky model."""
    ledgers: Path | None = None
    """Folder of the journal, which anchored ledgers makes ledgers of; unless given, one that is
    removed when the server ends."""
    default_k: float = 1.5
    """Budget in nats a token of requests that ask for none: K = k * max_tokens."""
    max_k: float | None = None
    """Largest k that a request may ask for; any unless given."""
    max_total: float | None = None
    """Largest K of a request, in nats; any unless given."""
    max_horizon: int | None = None
    """Most tokens that a request may ask for; any number unless given."""
    divergence: Literal["kl", "max"] = "kl"
    """What budgets bound unless a request asks for the other: kl the mean log-ratio of p* to the
    safe model, max its largest value."""
    debt: Literal["top", "average", "none"] = "top"
    """What a prompt's log-likelihood ratios cost before the first token: top charges the mean of
    the largest, average that of all, none nothing."""
    debt_window: int = 5
    """Tokens of the prompt whose ratios the top debt is the mean of."""
    budget: Literal["adaptive", "fixed", "global"] = "adaptive"
    """What becomes of unspent nats: adaptive carries them over, global frees all of them from the
    start, fixed loses them, and charges no debt."""
    allow_quantized_safe: bool = False
    """Take a quantized safe model: the bound then holds against that one."""


def serve(words: list[str]) -> int:
    """Serve until a signal ends it; the words that are not ours go to vLLM."""
    config, others = parse_known(ServeConfig, "vllm serve", words)
    from anchored.decode.rules.anchored import Anchored
    from anchored.decode.vllm.engine import prepare
    from anchored.decode.vllm.settings import Limits

    rule = Anchored(
        k=config.default_k,
        divergence=config.divergence,
        debt=config.debt,
        debt_window=config.debt_window,
        budget=config.budget,
    )
    limits = Limits(
        rule=rule,
        max_k=config.max_k,
        max_total=config.max_total,
        max_horizon=config.max_horizon,
    )
    settings, _ = prepare(
        config.safe,
        config.risky,
        limits,
        config.ledgers,
        allow_quantized_safe=config.allow_quantized_safe,
    )
    from anchored.decode.vllm.server import serve as serve_until_a_signal

    serve_until_a_signal(settings, others)
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgersConfig:
    """Make ledgers of a server's journal: anchored ledgers --journal DIR --out LEDGERS

    Writes one file for each request, named by its id, which anchored verify checks.
    """

    journal: Path
    """Folder that anchored vllm serve --ledgers wrote."""
    out: Path | None = None
    """Folder for the ledgers; the folder ledgers in the journal's unless given."""
    overwrite: bool = False
    """Replace ledgers that exist."""

    def __post_init__(self) -> None:
        check_input(self.journal, "folder")


def ledgers(config: LedgersConfig) -> int:
    """Write every ledger, print one line of what they are; returns the exit status."""
    from anchored.decode.vllm.journal import journal_ledgers

    folder = config.out or config.journal / "ledgers"
    by_id = list(journal_ledgers(config.journal))
    paths = [folder / f"{_file_name(name)}.jsonl" for name, _ in by_id]
    check_outputs(config, *paths)
    for path, (_, ledger) in zip(paths, by_id, strict=True):
        ledger.save(path, overwrite=config.overwrite)
    num_certified = sum(ledger.certified for _, ledger in by_id)
    print(f"{len(by_id)} ledgers in {folder}, {num_certified} certified")
    return 0


def _file_name(request_id: str) -> str:
    """The name of a request's ledger. An offline id is the caller's: a path would leave the folder,
    and two ids never share a name."""
    plain = re.sub(r"[^\w.-]", "_", request_id)
    if plain == request_id:
        return plain
    return f"{plain}-{hashlib.sha256(request_id.encode()).hexdigest()[:16]}"


QUICKSTART_MODELS = Path("runs/quickstart/models")


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoConfig(ModelOptions):
    """Show on a page of this machine what a pair writes: anchored demo

    Three columns show the safe model's text, that of p* and the risky model's, with the budget, the
    words copied from a text that one pastes, and a ledger to download and verify. The pair is the
    quickstart's unless another is named. Needs pip install 'anchored[demo]'.
    """

    port: int = 7860
    """Port on 127.0.0.1 that serves the page."""
    browser: bool = True
    """Open the page in the default browser."""

    def __post_init__(self) -> None:
        for name in ("safe", "risky"):
            if self.pair is None and getattr(self, name) is None:
                object.__setattr__(self, name, QUICKSTART_MODELS / name)
        try:
            ModelOptions.__post_init__(self)
        except FileNotFoundError as error:
            hint = "anchored quickstart makes a pair; --safe and --risky name another"
            raise FileNotFoundError(f"{error}: {hint}") from None
        if not 1 <= self.port <= 65535:
            raise ValueError(f"--port must be in [1, 65535], got {self.port}")
