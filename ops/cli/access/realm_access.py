"""Access of commands to their realm: by a server, a node, or a store without a node."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from threading import Timer
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO, TypeVar

import msgspec

from rookery.bus.client import Client
from rookery.bus.clock import entropy
from rookery.bus.commands import CommandDecoder, JetStreamInbox
from rookery.bus.credentials import identity_header
from rookery.bus.jetstream_api import STREAM_NOT_FOUND, ApiError
from rookery.bus.journal import JetStreamFeed, JetStreamJournal
from rookery.bus.journal_audit import Quarantine
from rookery.bus.nats import Connection
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.roles import Role
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.bus.storage import (
    Bucket,
    JetStreamBlobs,
    JetStreamCheckpointStore,
    JetStreamClaims,
    JetStreamSecrets,
)
from rookery.bus.streams import find_node_token
from rookery.bus.subjects import Subjects
from rookery.ops.cli.options import NodeTools, Options
from rookery.ops.cli.rendering.run_output import print_stderr
from rookery.ops.config import Config
from rookery.ops.keys import ConfiguredKeys, TrustRoots
from rookery.ops.logs import configure
from rookery.ops.process_identity import is_dead
from rookery.ops.server import ConfiguredServer, RealmServer
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.ids import decode_typed_text, node_of_holder, process_of_holder

if TYPE_CHECKING:
    from rookery.ops.node import Node

__all__ = [
    "OfflineRealm",
    "ProgressJournal",
    "ReadProgress",
    "file_lines",
    "is_long_file",
    "local_server",
    "open_realm",
    "read_progress",
    "with_realm_client",
]

# --- offline realm --------------------------------------------------------------------------------

# A realm opened by a command: the parts that need no node, and requests to its nodes.
#
# Opening a realm creates nothing in it. Commands that need no node use the running server, or run
# one for the time of the command. A long read shows a progress line on a terminal: it is written to
# stderr, rewritten in place and erased at the end.


@contextmanager
def local_server(options: Options) -> Iterator[None]:
    """Run a server on the store for this block, unless one is running or there is no store."""
    config = options.load().config
    store = ConfiguredServer(config).store.path
    if not store.is_dir() or ConfiguredServer(config).find(Role.NODE) is not None:
        yield
        return
    server = ConfiguredServer(config).embedded()
    try:
        server.start()
    except Refused as refusal:
        if refusal.code != "STORE_IN_USE":
            raise
        yield  # Another process has just started one.
        return
    try:
        yield
    finally:
        server.stop()


LONG_MESSAGES: Final = 20_000
"""A shorter journal is read too fast for a progress line."""
LONG_FILE_BYTES: Final = 50_000_000
_FILE_STEP: Final = 1_000
"""Lines between two updates of the progress line."""
_ERASE: Final = "\r\x1b[K"


class ReadProgress:
    """The progress line; it shows the share of ``total``."""

    def __init__(self, total: int, stream: TextIO, units: str = "messages") -> None:
        self._total, self._stream, self._units = total, stream, units
        self._shown = ""

    def update(self, done: int) -> None:
        share = f"{100 * done // self._total} % of {self._total:,} {self._units}"
        line = f"reading the journal: {share}"
        if line != self._shown:
            self._stream.write(_ERASE + line)
            self._stream.flush()
            self._shown = line

    def erase(self) -> None:
        self._stream.write(_ERASE)
        self._stream.flush()


@contextmanager
def read_progress(total: int, stream: TextIO) -> Iterator[ReadProgress | None]:
    """A progress line; ``None`` for a short journal, or if ``stream`` is no terminal."""
    if total < LONG_MESSAGES or not stream.isatty():
        yield None
        return
    shown = ReadProgress(total, stream)
    try:
        yield shown
    finally:
        shown.erase()


def is_long_file(file: BinaryIO) -> bool:
    """Whether reading it takes a while; of a pipe nothing is known."""
    status = os.fstat(file.fileno())
    return stat.S_ISREG(status.st_mode) and status.st_size >= LONG_FILE_BYTES


@contextmanager
def file_lines(file: BinaryIO, stream: TextIO) -> Iterator[Iterable[bytes]]:
    """The lines of a file, with a progress line if it is long and ``stream`` a terminal."""
    if not is_long_file(file) or not stream.isatty():
        yield file
        return
    shown = ReadProgress(os.fstat(file.fileno()).st_size, stream, "bytes")
    try:
        yield _counted(file, shown)
    finally:
        shown.erase()


def _counted(file: BinaryIO, shown: ReadProgress) -> Iterator[bytes]:
    done = 0
    for number, line in enumerate(file):
        if number % _FILE_STEP == 0:
            shown.update(done)
        done += len(line)
        yield line


class ProgressJournal(JetStreamJournal):
    """A journal that shows a progress line while it is scanned."""

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        with read_progress(await self.end() - after, sys.stderr) as shown:
            async for page in super().scan(where, after):
                if shown is not None:
                    shown.update(page[-1].sequence - after)
                yield page


T = TypeVar("T")

_UNANSWERED_CODES: Final = frozenset({"PARTITION_UNOWNED", "NO_ANSWER"})
_TIMEOUT_S: Final = 10.0
_ANY_KEY: Final = "all"
_UP: Final = "rookery up"


class OfflineRealm:
    """The parts of a realm that can be read without a node, and requests to its nodes."""

    def __init__(self, connection: Connection, config: Config) -> None:
        self.subjects = subjects = Subjects(config.realm)
        self.quarantine = Quarantine()
        self.journal = ProgressJournal(connection, subjects, quarantine=self.quarantine)
        self.stored_journal = ProgressJournal(connection, subjects)
        """The journal with the bodies of quarantined messages."""
        self.feed = JetStreamFeed(connection, subjects, self.quarantine)
        self.inbox = JetStreamInbox(connection, subjects, CommandDecoder(subjects, ""))
        self.claims = JetStreamClaims(Bucket(connection, subjects, subjects.claims_bucket))
        self.blobs = JetStreamBlobs(Bucket(connection, subjects, subjects.blobs_bucket))
        self.images = JetStreamBlobs(Bucket(connection, subjects, subjects.images_bucket))
        self.checkpoints = JetStreamCheckpointStore(
            Bucket(connection, subjects, subjects.projections_bucket)
        )
        self.secrets = JetStreamSecrets(Bucket(connection, subjects, subjects.secrets_bucket))
        self.connection = connection
        self.root_key = TrustRoots.root_key_of(config.approvals)
        """The public key that may always name approvers; empty if none is configured."""
        self._config = config
        self._client: Client | None = None

    @property
    def identity(self) -> str:
        """Signs a command as the operator's client would."""
        credential = ConfiguredServer(self._config).require(Role.OPERATOR).credential
        return identity_header(credential, entropy(16)) if credential else ""

    def sealed_secrets(self, keys: ConfiguredKeys) -> SealedSecrets:
        """The realm's secrets, under the keys of the configuration."""
        return SealedSecrets(self.secrets, self.subjects.realm, keys, entropy)

    @property
    def keys(self) -> ConfiguredKeys:
        return ConfiguredKeys.of(self._config)

    async def nodes(self) -> frozenset[str]:
        """The live nodes: those with a claim whose process is not known to be dead."""
        return frozenset(map(node_of_holder, await self._holders()))

    async def processes(self) -> frozenset[str]:
        """The live processes of the nodes; a node of one process has the name of its process."""
        return frozenset(map(process_of_holder, await self._holders()))

    async def _holders(self) -> list[str]:
        claims = await self.claims.list("node.")
        return [claim.holder for claim in claims if not is_dead(claim.value)]

    async def try_ask(self, verb: str, query: object, kind: type[T]) -> T | None:
        """The reply of any node to a query; ``None`` if no node replies."""
        try:
            return await self.ask(verb, _ANY_KEY, query, kind)
        except Failed as error:
            if error.code in _UNANSWERED_CODES:
                return None
            raise

    async def ask(
        self, verb: str, key: str, body: object, kind: type[T], patience_s: float = _TIMEOUT_S
    ) -> T:
        """The reply of the node that owns ``key``; ``Failed`` at once if the realm has no node."""
        if self._client is None:
            if not await self.nodes():
                raise Failed("NO_ANSWER", f"no node serves realm {self._config.realm}", hint=_UP)
            server = ConfiguredServer(self._config).require(Role.OPERATOR)
            client = server.client(self._config.realm)
            client.on_progress = lambda text: print(f"waiting: {text}", file=sys.stderr)
            await client.open()
            self._client = client
        reply = await self._client.ask(verb, key, body, timeout_s=patience_s)
        return msgspec.convert(reply, kind, dec_hook=decode_typed_text)

    async def aclose(self) -> None:
        """Close the client of the realm's nodes, if one was opened."""
        if self._client is not None:
            await self._client.close()


@asynccontextmanager
async def open_realm(options: Options, *, current: bool = False) -> AsyncIterator[OfflineRealm]:
    """The realm of the options; ``Failed`` SERVER_UNREACHABLE if the server has no such realm.

    A realm of another format can be read; ``current`` refuses it.
    """
    config = options.load().config
    server = ConfiguredServer(config).require(Role.NODE)
    _require_node_role(server, config)
    connection = Connection(server.url, server.access)
    await connection.open()
    try:
        realm = OfflineRealm(connection, config)
        await _read_node_token(connection, realm.subjects, current=current)
        await realm.quarantine.load(realm.journal)
        async with aclosing(realm):
            yield realm
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise Failed("SERVER_UNREACHABLE", f"JetStream refuses: {error}") from None
        raise Failed(
            "SERVER_UNREACHABLE",
            f"the server has no realm {config.realm!r}",
            hint=f"rookery up --realm {config.realm}",
        ) from None
    finally:
        await connection.close()


def _require_node_role(server: RealmServer, config: Config) -> None:
    """Refuse a named credential that cannot read the store."""
    named = server.credential
    if named is not None and named.role is not Role.NODE:
        raise Refused(
            "NOT_PERMITTED",
            f"this command reads the store of the realm, and {config.server.credentials_file} has "
            f"the role {named.role}",
            hint="name a node's: server.credentials_file (ROOKERY_SERVER_CREDENTIALS_FILE) = "
            f"{named.realm}.node.json",
        )


async def _read_node_token(connection: Connection, subjects: Subjects, *, current: bool) -> None:
    try:
        await find_node_token(connection, subjects)
    except Failed as error:
        if current or not error.code.startswith("REALM_"):
            raise


# --- node access ----------------------------------------------------------------------------------

# A client of the realm for a run: on the running node, or on a node in this process.
#
# The node in this process stops with the command, after the runs that other clients have started on
# it. If the running node stops before it has accepted the run, a node in this process replaces it
# on the same store. An accepted run is never submitted to another node.


ClientWork = Callable[[Client], Coroutine[Any, Any, int]]
"""It prints its result and returns the exit code."""

ATTEMPTS = 3
ABSENCE_MAX_S = 5.0
"""How long the realm may be without a node, such as while it restarts."""
NOTICE_AFTER_S = 1.0
"""A node that takes longer to stop prints why."""
SERVER_CHANGED_CODES: Final = ("STORE_IN_USE", "SERVER_UNREACHABLE")
"""Another process has started or stopped a server: look for the server again."""


def with_realm_client(options: Options, own: NodeTools, work: ClientWork) -> int:
    """Do ``work`` with a client of the realm, on the running node or one in this process, which has
    its ``own`` tools."""
    config = options.load(**own.flags, **{"node.driver": "sandbox"}).config
    problem: CodedError = ConfiguredServer(config).missing_error()
    for _ in range(ATTEMPTS):
        try:
            server = ConfiguredServer(config).find(Role.OPERATOR)
            if server is None:
                return _with_own_node(config, work)
            if own.typed:
                raise _tools_refused(own.typed)
            return asyncio.run(_with_client(config, server, work))
        except CodedError as error:
            if config.url or error.code not in SERVER_CHANGED_CODES:
                raise
            problem = error
    raise problem


def _with_own_node(config: Config, work: ClientWork) -> int:
    from rookery.ops.node import Node  # noqa: PLC0415 - slow, needed where no node runs.

    configure("warning", config.log.format, sys.stderr)
    node = Node(config)
    node.start()
    try:
        return asyncio.run(
            _with_client(config, ConfiguredServer(config).require(Role.OPERATOR), work)
        )
    finally:
        _stop_node(node)


def _stop_node(node: Node) -> None:
    """Stop the node; the result is printed already, so errors are only reported."""
    notice = Timer(NOTICE_AFTER_S, _print_notice, [node])
    notice.daemon = True
    notice.start()
    try:
        node.stop()
    except CodedError as error:
        print_stderr(f"stopping: {error}")
    finally:
        notice.cancel()


def _print_notice(node: Node) -> None:
    with suppress(CodedError, TimeoutError):
        runs = ", ".join(node.running()) or "running commands"
        print_stderr(
            f"stopping: this process serves {runs} to the end, for {node.drain_s:g} s at most"
        )


async def _with_client(config: Config, server: RealmServer, work: ClientWork) -> int:
    async with server.client(config.realm, ABSENCE_MAX_S) as client:
        return await work(client)


def _tools_refused(typed: str) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"{typed}: a node is running, with its own tools",
        hint=f"start it with them: rookery up {typed}",
    )
