"""The database of accounts: its tables, in SQLite or PostgreSQL, and how transactions begin."""

import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.engine import URL, make_url

LOCK: Final = 0x616E63686F726564
"""A number of ours among PostgreSQL's locks that applications name: "anchored" in ASCII."""

BUSY_S: Final = 30
"""Seconds for which a transaction waits for those of other processes."""

TABLES: Final = MetaData()
ACCOUNTS: Final = Table(
    "anchored_accounts",
    TABLES,
    Column("account", String, primary_key=True),
    Column("allowed", BigInteger, nullable=False),  # quanta of a period, by accounts.toml
    Column("extra", BigInteger, nullable=False),  # quanta besides, set by an operator
    Column("spent", BigInteger, nullable=False),  # quanta of the period
    Column("reserved", BigInteger, nullable=False),
    Column("divergence", String, nullable=False),  # that the sum of its nats bounds
    Column("period_s", BigInteger),  # of periods that begin from now on; NULL for one without end
    Column("began_s", BigInteger, nullable=False),  # by the store's clock
    Column("ends_s", BigInteger),  # by the store's clock; NULL for never
)
CHARGES: Final = Table(
    "anchored_charges",
    TABLES,
    Column("request_id", String, primary_key=True),  # as in the journal
    Column("account", String, primary_key=True),
    Column("server", String, nullable=False, index=True),
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger),  # NULL while the text is drawn
    Column("settled_s", BigInteger),  # by the store's clock
)
SERVERS: Final = Table(
    "anchored_servers",
    TABLES,
    Column("server", String, primary_key=True),
    Column("folder", String, nullable=False),  # of its journal and its lock
    Column("boot", String, nullable=False),  # of the system that it runs on
    Column("is_synced", Boolean, nullable=False),  # the journal outlives a power cut
    Column("joined_s", BigInteger, nullable=False),  # by the system's clock
    Column("files", Text, nullable=False),  # journals that were in the folder before, a name a line
)
STORE: Final = Table(
    "anchored_store",
    TABLES,
    Column("version", Integer, primary_key=True),  # of these tables
    Column("clock_s", BigInteger, nullable=False),  # the store's clock, see `Store.now`
    Column("seen_s", BigInteger, nullable=False),  # the system's clock when that went on last
    Column("policy", Text, nullable=False),  # that was applied last, as JSON
    Column("policy_number", BigInteger, nullable=False),  # of times that it was applied
)
VERSION: Final = 2


def database(where: str, root: Path) -> Engine:
    """A database that has the tables.

    where: as `Policy.store`, a path in the folder `root` for SQLite. Raises ValueError for an
    address of another kind.
    """
    engine = create_engine(_address(where, root), pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    with engine.begin() as connection:
        wait_for_others(connection)
        TABLES.create_all(connection)
        version = connection.execute(select(STORE.c.version)).scalar()
        if version is None:
            now_s = int(time.time())
            row = {"version": VERSION, "clock_s": now_s, "seen_s": now_s}
            connection.execute(insert(STORE).values(**row, policy="", policy_number=0))
        elif version != VERSION:
            raise ValueError(f"the accounts in {where} are of version {version}, not of {VERSION}")
    return engine


def wait_for_others(connection: Connection) -> None:
    """Let no other process make tables or accounts until this transaction ends: PostgreSQL lets two
    look for a row that is not there, and SQLite only one."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))


def _address(where: str, root: Path) -> URL:
    if "://" not in where:
        return URL.create("sqlite", database=str(root / where))
    address = make_url(where)
    if address.get_backend_name() != "postgresql":
        raise ValueError(f"store must be a file or postgresql://..., got {address!r}")
    return address.set(drivername="postgresql+psycopg")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # else the driver begins transactions, and late
    connection.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a reservation outlives a power cut


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # what is read is not changed by another process
