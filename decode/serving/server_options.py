"""Options of the server and of its journal; nothing that it runs on is imported here."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

from ...fields import check_least
from ...inputs import check_input
from ..settings import REPEATED

MAX_BODY: Final = 8 << 20
"""Bytes of a request's body: two million tokens of text, more than a context of today holds."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """The address that a pair is served at, its clients, and how much they get at once."""

    host: str = "127.0.0.1"
    """Address to listen at; another than this machine's needs an api_key_file or accounts."""
    port: int = 8000
    """Port to listen at."""
    api_key_file: Path | None = None
    """File of keys, one a line, one of which a client sends; none is asked for unless given."""
    accounts: Path | None = None
    """File accounts.toml of clients, their keys and the nats that each may be given, in place of
    an api_key_file; the page docs/serving.md says what it holds."""
    allowed_host: Annotated[tuple[str, ...], REPEATED] = ()
    """Name by which clients call the server, in their Host header, besides this machine's; any
    where keys are asked for unless given. Give it again for more."""
    root_path: str = ""
    """Prefix of all paths that a proxy in front leaves."""
    served_name: str = "anchored"
    """Name of the pair as a model."""
    max_length: int | None = None
    """Most tokens, or bytes, of a prompt and its text; the models' context unless given."""
    chat_length: int = 512
    """Tokens of a chat that names no max_tokens, where clients have accounts: its bound is reserved
    before it is drawn. Without accounts it gets the rest of the context."""
    max_waiting: int = 256
    """Texts that wait for a row; more are answered by 429."""
    max_connections: int = 512
    """Connections of clients at once; more are closed."""
    max_body: int = MAX_BODY
    """Most bytes of a request's body."""
    expose_logprobs: bool = False
    """Have logprobs and echo tell those of p*, in place of p_s: of tokens that were not drawn, so
    that no bound covers such an answer; never with accounts."""
    allowed_origin: Annotated[tuple[str, ...], REPEATED] = ()
    """Origin of web pages that may call the server from a browser, as https://chat.example.org;
    none unless given. Give it again for more."""
    shutdown_s: float = 30.0
    """Seconds that texts may go on after SIGTERM."""

    def __post_init__(self) -> None:
        check_input(self.api_key_file)
        check_input(self.accounts)
        if self.api_key_file is not None and self.accounts is not None:
            raise ValueError("--accounts names the keys of its clients: leave --api-key-file out")
        if self.accounts is not None and self.expose_logprobs:
            raise ValueError("--accounts count nats, and --expose-logprobs tells what costs none")
        check_least(self, 0, "max_waiting", "shutdown_s")
        check_least(self, 1, "max_length", "max_body", "max_connections", "chat_length")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port must be in [0, 65535], got {self.port}")
        if self.root_path and not self.root_path.startswith("/"):
            raise ValueError(f"--root-path must begin with /, got {self.root_path!r}")
        if not self.asks_for_keys and not _is_local(self.host):
            raise ValueError(
                f"--host {self.host} lets other machines in: give an --api-key-file with the keys "
                "of those that may ask, or --accounts"
            )

    @property
    def asks_for_keys(self) -> bool:
        """Whether clients have to send one."""
        return self.api_key_file is not None or self.accounts is not None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that a Host header may have, none for any."""
        if self.asks_for_keys and not self.allowed_host:
            return ()
        return (*LOCAL_HOSTS, self.host, *self.allowed_host)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalOptions:
    """The folder of a server's journal, the size of its files, and its safety."""

    ledgers: Path | None = None
    """Folder of the journal, which anchored ledgers makes ledgers of; unless given, one that is
    removed when the server ends."""
    journal_mb: int = 1000
    """Megabytes of one file of the journal, after which the next one begins."""
    fsync: bool = False
    """Have each step on the disk before its tokens leave, so that a power cut loses none that a
    client has; a step then waits for the disk."""

    def __post_init__(self) -> None:
        check_least(self, 1, "journal_mb")

    @property
    def of_writer(self) -> dict[str, Any]:
        """The arguments of a JournalWriter besides its folder."""
        return {"max_bytes": self.journal_mb * MEGABYTE, "is_synced": self.fsync}
