"""The commands that serve a pair, by vLLM or on a page, and make ledgers of what was served."""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from anchored.decode.pair.pair_file import PairFile
from anchored.decode.pair_options import ModelOptions, PairNames, PairOptions, RuleOptions
from anchored.decode.serving.journal_options import JournalOptions
from anchored.decode.serving.server_options import ServerOptions
from anchored.decode.settings import FLAT
from anchored.inputs import check_input
from anchored.wrong_words import argparse_refused

from .accounts import read_policy
from .files import check_outputs
from .words import parse_known

if TYPE_CHECKING:
    from anchored.decode.rules.rule import Rule
    from anchored.decode.serving.accounts.keeper import Keeper
    from anchored.decode.serving.asked import Limits

UNKEPT = "--accounts needs --ledgers: the journal says what is to be charged"

QUICKSTART_MODELS = Path("runs/quickstart/models")


def name_quickstart_models(options: PairNames) -> None:
    """Have the quickstart's models where none are named."""
    for name in ("safe", "risky"):
        if options.pair is None and getattr(options, name) is None:
            object.__setattr__(options, name, QUICKSTART_MODELS / name)


@contextmanager
def hint_at_quickstart() -> Iterator[None]:
    """Say what makes a pair where one is not there."""
    try:
        yield
    except FileNotFoundError as error:
        hint = "anchored quickstart makes a pair; --safe and --risky name another"
        raise FileNotFoundError(f"{error}: {hint}") from None


pathwise = partial(RuleOptions, rule="pathwise")
"""Options of the rule that a server has unless another is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitOptions:
    """The most that a request may ask for."""

    max_k: float | None = None
    """Largest k that a request may ask for; any unless given."""
    max_total: float | None = None
    """Largest K of a request, in nats, its bank among them; any unless given."""
    max_bank: float | None = None
    """Largest bank of a request, in nats, where the rule has one; any unless given."""
    max_horizon: int | None = None
    """Most tokens that a request may ask for; any number unless given."""

    def make(self, rule: "Rule") -> "Limits":
        """The limits of a server with this rule; ValueError for what is out of range."""
        from anchored.decode.serving.asked import Limits

        return Limits(rule=rule, **asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(PairOptions):
    """Serve a pair on this machine: anchored serve --safe A --risky B --ledgers DIR

    An OpenAI server on any device, by tokens or bytes, for every rule: pathwise with k = 1 and a
    bank of 20 nats unless another is named. The pair is the quickstart's unless another is named.
    Needs pip install 'anchored[serve]'. The page docs/serving.md says what a request may ask for
    and what an answer says.
    """

    rule: Annotated[RuleOptions, FLAT] = field(default_factory=pathwise)
    """Rule of decoding, which chooses the next token, and its budget."""
    server: Annotated[ServerOptions, FLAT] = field(default_factory=ServerOptions)
    """Where the pair is served, to whom, and how much of it at once."""
    journal: Annotated[JournalOptions, FLAT] = field(default_factory=JournalOptions)
    """The folder of the journal, the size of its files, and its safety."""
    limits: Annotated[LimitOptions, FLAT] = field(default_factory=LimitOptions)
    """The most that a request may ask for."""

    def __post_init__(self) -> None:
        name_quickstart_models(self)
        if self.server.accounts is not None and self.journal.ledgers is None:
            raise ValueError(UNKEPT)
        with hint_at_quickstart():
            PairOptions.__post_init__(self)
        self.limits.make(self.rule.checked())


def serve(config: ServeConfig) -> int:
    """Serve until a signal ends it; returns the exit status."""
    from anchored.decode.serving.server import bound_socket
    from anchored.decode.serving.server import serve as serve_until_a_signal

    limits = config.limits.make(config.rule.make())
    with bound_socket(config.server) as bound:
        open_accounts = None
        if config.server.accounts is not None:
            open_accounts = _accounts(config.server.accounts, config.journal)
        decoder = config.decoder(limits.rule)
        options = config.server, config.journal, bound, open_accounts
        serve_until_a_signal(decoder, limits, *options)
    return 0


def _accounts(
    path: Path, journal: JournalOptions
) -> Callable[[Path], AbstractContextManager["Keeper"]]:
    """What opens the accounts of a file for a server, once that has a folder for its journal."""
    from anchored.decode.serving.accounts.keeper import kept

    return partial(kept, read_policy(path), path.parent, is_synced=journal.fsync)


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmServeConfig(PairNames):
    """Serve a pair by vLLM: anchored vllm serve --safe A --risky B --ledgers DIR --port 8000

    Starts an OpenAI server; all other options are those of vllm serve, as --tensor-parallel-size 8.
    The rule is pathwise with k = 1 and a bank of 20 nats, or anchored. Needs pip install
    'anchored[vllm]'. The page docs/serving.md says what a request may ask for and what an answer
    says.
    """

    rule: Annotated[RuleOptions, FLAT] = field(default_factory=pathwise)
    """Rule of decoding, which chooses the next token, and its budget."""
    journal: Annotated[JournalOptions, FLAT] = field(default_factory=JournalOptions)
    """The folder of the journal, the size of its files, and its safety."""
    limits: Annotated[LimitOptions, FLAT] = field(default_factory=LimitOptions)
    """The most that a request may ask for."""
    accounts: Path | None = None
    """File accounts.toml of clients, their keys and the nats that each may be given, in place of
    vLLM's --api-key; needs pip install 'anchored[serve]'."""

    def __post_init__(self) -> None:
        PairNames.__post_init__(self)
        check_input(self.accounts)
        if self.accounts is not None and self.journal.ledgers is None:
            raise ValueError(UNKEPT)
        from anchored.decode.vllm.settings import checked_rule

        self.limits.make(checked_rule(self.rule.checked()))

    def _take(self, named: PairFile) -> None:
        PairNames._take(self, named)
        if named.level == "byte":
            raise ValueError("--pair names a pair that is decoded in bytes: vLLM decodes tokens")
        if named.k is not None and self.rule.k is self.rule.K is None:
            object.__setattr__(self, "rule", replace(self.rule, k=named.k))


def vllm_serve(words: list[str]) -> int:
    """Serve until a signal ends it; the words that are not ours go to vLLM."""
    config, others = parse_known(VllmServeConfig, "vllm serve", words)
    from anchored.decode.vllm.engine import prepare
    from anchored.decode.vllm.settings import checked_rule

    limits = config.limits.make(checked_rule(config.rule.make()))
    settings, _ = prepare(
        config.locations["safe"],
        config.locations["risky"],
        limits,
        config.journal,
        revisions=(config.safe_revision, config.risky_revision),
        allow_quantized_safe=config.allow_quantized_safe,
    )
    from anchored.decode.vllm.server import serve as serve_until_a_signal

    open_accounts = None if config.accounts is None else _accounts(config.accounts, config.journal)
    with argparse_refused():
        serve_until_a_signal(settings, others, open_accounts)
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgersConfig:
    """Make ledgers of a server's journal: anchored ledgers --journal DIR --out LEDGERS

    Writes one file for each request, named by its id, which anchored verify checks.
    """

    journal: Path
    """Folder that anchored serve --ledgers wrote, or anchored vllm serve."""
    out: Path | None = None
    """Folder for the ledgers; the folder ledgers in the journal's unless given."""
    overwrite: bool = False
    """Replace ledgers that exist."""

    def __post_init__(self) -> None:
        check_input(self.journal, "folder")


def ledgers(config: LedgersConfig) -> int:
    """Write every ledger, print one line of what they are; returns the exit status."""
    from tqdm import tqdm

    from anchored.decode.serving.journal_reader import journal_ledgers

    folder = config.out or config.journal / "ledgers"
    if not config.overwrite and any(folder.glob("*.jsonl")):
        raise ValueError(f"{folder} holds ledgers already: --overwrite replaces them")
    num_ledgers = num_certified = 0
    for name, ledger in tqdm(journal_ledgers(config.journal), unit=" ledgers"):
        path = folder / f"{_file_name(name)}.jsonl"
        check_outputs(config, path)
        ledger.save(path, overwrite=config.overwrite)
        num_ledgers, num_certified = num_ledgers + 1, num_certified + ledger.certified
    plural = "" if num_ledgers == 1 else "s"
    print(f"{num_ledgers} ledger{plural} in {folder}, {num_certified} certified")
    return 0


def _file_name(request_id: str) -> str:
    """The name of a request's ledger. An offline id is the caller's: a path would leave the folder,
    and two ids never share a name."""
    plain = re.sub(r"[^\w.-]", "_", request_id)
    if plain == request_id:
        return plain
    return f"{plain}-{hashlib.sha256(request_id.encode()).hexdigest()[:16]}"


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
        if not 1 <= self.port <= 65535:
            raise ValueError(f"--port must be in [1, 65535], got {self.port}")
        name_quickstart_models(self)
        with hint_at_quickstart():
            ModelOptions.__post_init__(self)
