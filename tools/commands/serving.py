"""The commands that serve a pair, for clients or on a page, and make ledgers of what was served."""

import asyncio
import hashlib
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from anchored.decode.pair_options import (
    ModelOptions,
    PairNames,
    PairOptions,
    RuleOptions,
    named_values,
)
from anchored.decode.serving.server_options import JournalOptions, ServerOptions
from anchored.decode.settings import FLAT
from anchored.inputs import check_input

from .accounts import read_policy
from .files import check_outputs

if TYPE_CHECKING:
    from anchored.decode.rules.rule import Rule
    from anchored.decode.serving.anchored_options import Limits
    from anchored.decode.serving.engine import Engine

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
        from anchored.decode.serving.anchored_options import Limits

        return Limits(rule=rule, **asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(PairOptions):
    """Serve a pair on this machine: anchored serve --safe A --risky B --ledgers DIR

    An OpenAI server: on any device, by tokens or bytes, for every rule; or by vLLM's engine, for
    pairs that share their tokens. The rule is pathwise with k = 1 and a bank of 20 nats unless
    another is named, and the pair is the quickstart's. Needs pip install 'anchored[serve]'. The
    page docs/serving.md says what a request may ask for and what an answer says.
    """

    rule: Annotated[RuleOptions, FLAT] = field(default_factory=pathwise)
    """Rule of decoding, which chooses the next token, and its budget."""
    engine: Literal["decoder", "vllm"] = "decoder"
    """The engine that draws the texts: the library's decoder, or vLLM, which needs pip install
    'anchored[vllm]', draws by the rules anchored and pathwise, and has options of its engine alone
    for devices, numbers and sizes."""
    engine_args: tuple[str, ...] = ()
    """Arguments of vLLM's engine, NAME=VALUE, as tensor_parallel_size=8 or max_model_len=8192."""
    server: Annotated[ServerOptions, FLAT] = field(default_factory=ServerOptions)
    """The address that the pair is served at, its clients, and how much they get at once."""
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
        rule = self.rule.checked()
        if self.engine == "vllm":
            self._check_vllm(rule)
        elif self.engine_args:
            raise ValueError(f"--engine-args are of --engine vllm, got {self.engine_args[0]!r}")
        self.limits.make(rule)

    def _check_vllm(self, rule: "Rule") -> None:
        """Raise ValueError for what vLLM's engine does not take."""
        from anchored.decode.vllm.pair_description import checked_rule

        checked_rule(rule)
        if self.level == "byte":
            raise ValueError("--engine vllm decodes tokens, got --level byte")
        if self.server.expose_logprobs:
            raise ValueError("--expose-logprobs is of --engine decoder: vLLM tells those of p_s")
        for option in fields(self):
            default = option.default
            if option.default_factory is not MISSING:
                default = option.default_factory()
            if option.name not in OF_VLLM and getattr(self, option.name) != default:
                name = option.name.replace("_", "-")
                raise ValueError(f"--{name} is of --engine decoder: vLLM has --engine-args")
        named_values("--engine-args", self.engine_args)


OF_VLLM = (
    *("safe", "risky", "pair", "safe_revision", "risky_revision", "allow_quantized_safe"),
    *("rule", "level", "engine", "engine_args", "server", "journal", "limits"),
)
"""Options of `anchored serve` that vLLM's engine has too."""


def serve(config: ServeConfig) -> int:
    """Serve until a signal ends it; returns the exit status."""
    from anchored.decode.serving.server import PairServer, bound_socket

    limits, server = config.limits.make(config.rule.make()), config.server
    opened = _vllm_engine if config.engine == "vllm" else _decoder_engine
    with ExitStack() as stack:
        bound, keeper = stack.enter_context(bound_socket(server)), None
        if (folder := config.journal.ledgers) is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="anchored-")))
        # Accounts first: what a server before this one wrote is told by the files that are there.
        if server.accounts is not None:
            from anchored.decode.serving.accounts.keeper import kept

            policy, root = read_policy(server.accounts), server.accounts.parent
            is_synced = config.journal.fsync
            keeper = stack.enter_context(kept(policy, root, folder, is_synced=is_synced))
        engine = opened(config, limits.rule, folder)
        asyncio.run(PairServer(engine, limits, server, keeper).run(bound))
    return 0


def _decoder_engine(config: ServeConfig, rule: "Rule", folder: Path) -> "Engine":
    """The engine of a server whose journal is in a folder."""
    from anchored.decode.serving.batch_thread import BatchThread
    from anchored.decode.serving.journal import JournalWriter

    return BatchThread(
        config.decoder(rule),
        JournalWriter(folder, **config.journal.of_writer),
        max_length=config.server.max_length,
        max_waiting=config.server.max_waiting,
    )


def _vllm_engine(config: ServeConfig, rule: "Rule", folder: Path) -> "Engine":
    """vLLM's engine, which loads the models as it starts; else as `_decoder_engine`."""
    from anchored.decode.vllm.engine import prepare
    from anchored.decode.vllm.pair_description import checked_rule

    settings, pair = prepare(
        config.locations["safe"],
        config.locations["risky"],
        folder,
        config.journal,
        revisions=(config.safe_revision, config.risky_revision),
        allow_quantized_safe=config.allow_quantized_safe,
    )
    from anchored.decode.vllm.async_engine import open_engine

    options = config.server
    # Ctrl-C of a terminal reaches the engine's process too, where texts go on as long as here.
    arguments = {"shutdown_timeout": math.ceil(options.shutdown_s)}
    arguments |= {} if options.max_length is None else {"max_model_len": options.max_length}
    arguments |= named_values("--engine-args", config.engine_args)
    return open_engine(
        settings, pair, checked_rule(rule), arguments, max_waiting=options.max_waiting
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgersConfig:
    """Make ledgers of a server's journal: anchored ledgers --journal DIR --out LEDGERS

    Writes one file for each request, named by its id, which anchored verify checks.
    """

    journal: Path
    """Folder that anchored serve --ledgers wrote."""
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
