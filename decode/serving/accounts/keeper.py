"""The accounts of one server: bounds are reserved as requests come, and settled as texts end."""

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from ....durable_files import locked
from ...rules.rule import OpenRule, Rule
from ..engine import Refused
from ..journal import PATTERN
from .database import BUSY_S
from .journals import boot_of_system, lock_of, recover
from .policy import Policy, client_account
from .store import Exhausted, Server, Store, opened

logger = logging.getLogger(__name__)
Returned = TypeVar("Returned")

UNREACHED: Final = partial(
    Refused, 503, "the accounts cannot be reached", type="accounts_unavailable"
)

LOOK_S: Final = 5.0
"""Seconds between two looks at what was applied: a key that is taken away ends so soon."""


class Keeper:
    """Keeps the accounts of a server's clients while it runs.

    All transactions are made by one thread, in order; the server's loop waits for those that
    reserve, and for none that settles.
    """

    def __init__(self, policy: Policy, store: Store, server: str) -> None:
        """server: a name that the store has, and no other server."""
        self.policy, self.keys = policy, policy.keys
        self.secret = secrets.token_bytes(32)
        """Goes into the seeds of texts: no client knows the noise of a text before it is drawn, and
        no two texts share it, so that their bounds add up."""
        self._store, self._server = store, server
        self._applied = store.policy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="anchored-accounts")
        self._ended: list[tuple[str, float | None]] = []
        """Texts that have ended and are not settled; the thread takes them from its front."""

    def close(self) -> None:
        """Wait until all texts that have ended are settled, or cannot be."""
        self._thread.shutdown()

    async def follow(self) -> None:
        """Take what an operator applies while the server runs, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                applied = await self._made(self._store.policy)
            except Refused:
                continue  # its reason is in the log
            if applied != self._applied:
                self._applied, self.policy = applied, Policy.of_json(applied)
                self.keys = self.policy.keys
                logger.warning("the accounts were changed: %d clients", len(self.policy.clients))

    async def figures(self, client: str) -> dict[str, Any]:
        """A client's account as it is shown to it; nats, and seconds since 1970."""
        state = await self._made(partial(self._store.state, client_account(client)))
        shown = asdict(state)
        limit = shown.pop("allowed") + shown.pop("extra")
        return {"id": shown.pop("account"), "limit": limit, **shown}

    async def available(self, client: str, group: str | None) -> float:
        """Nats that one request may take of all accounts that it would charge: what is left, and of
        a group's an equal share, which leaves others theirs."""
        accounts = self.policy.accounts_of(self.policy.client(client), group)
        states = [await self._made(partial(self._store.state, account)) for account in accounts]
        return min(state.available / self.policy.num_clients(state.account) for state in states)

    async def reserve(
        self, client: str, group: str | None, bounds: Mapping[str, float], rule: Rule | OpenRule
    ) -> None:
        """Reserve the bounds of texts of a rule, in nats by their ids in the journal, all or none.

        Raises ValueError for a group that the client may not name and for a rule that bounds less
        than an account promises, and Refused where an account has no room or the store does not
        answer.
        """
        accounts = self.policy.accounts_of(self.policy.client(client), group)
        is_mean = rule.charge == "mean"
        reserve = partial(self._store.reserve, bounds, accounts, self._server, is_mean=is_mean)
        try:
            await self._made(reserve)
        except Exhausted as error:
            # Texts that are drawn have the nats, and may give them back; or they are spent.
            kind = "budget_reserved" if error.may_pass else "budget_exhausted"
            left = {"available": error.state.available, "reserved": error.state.reserved}
            raise Refused(429, str(error), may_pass=error.may_pass, type=kind, **left) from None

    def settle(self, request_id: str, spent: float | None) -> None:
        """Charge the nats of a text that has ended, None for its whole bound; returns at once."""
        self._ended.append((request_id, spent))
        self._thread.submit(self._settle)

    def _settle(self) -> None:
        """Settle all texts that have ended by now, in one transaction: many end together."""
        ended = self._ended[:]
        try:
            self._store.settle(dict(reversed(ended)))  # the first of a text, if it ended twice
            del self._ended[: len(ended)]
        except SQLAlchemyError as error:
            # Until the next text ends, or else a server starts, their bounds stay reserved.
            logger.error("%d texts are not settled yet: %s", len(ended), error)

    async def _made(self, call: Callable[[], Returned]) -> Returned:
        """The result of a call of the store; Refused where it fails, or has not begun in BUSY_S, as
        calls before it wait for the store."""
        called = self._thread.submit(call)
        done = asyncio.wrap_future(called)
        try:
            await asyncio.wait([done], timeout=BUSY_S)
        except asyncio.CancelledError:
            called.cancel()
            raise
        # What has begun may reserve something: its end is waited for.
        if called.cancel():
            logger.error("the accounts were not read or written in %g seconds", BUSY_S)
            raise UNREACHED()
        try:
            return await done
        except SQLAlchemyError as error:
            logger.error("the accounts cannot be read or written: %s", error)
            raise UNREACHED() from error


@contextmanager
def kept(policy: Policy, root: Path, folder: Path, *, is_synced: bool) -> Iterator[Keeper]:
    """Keep the accounts of a server while the context lasts.

    root: the folder of accounts.toml. folder: of the server's journal, which it has not begun.
    is_synced: whether its lines outlive a power cut. What servers that have ended left open is
    settled first.
    """
    name = uuid.uuid4().hex
    with opened(policy.store, root) as store, locked(lock := lock_of(folder, name)):
        store.apply(policy.accounts, policy.to_json())
        recover(store)
        files = "\n".join(sorted(path.name for path in folder.glob(PATTERN)))
        at, boot = int(time.time()), boot_of_system()
        store.join(Server(name, str(folder.resolve()), boot, is_synced, at, files))
        keeper = Keeper(policy, store, name)
        try:
            yield keeper
        finally:
            keeper.close()
            if store.leave(name):  # else a server that starts settles what is open
                lock.unlink(missing_ok=True)
