"""One realm on either kind of server, for suites that test both; buses join and leave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import nats

from rookery.bus.commands.command_messages import ReplySeal
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.ports import Bus
from rookery.bus.reads import NodeFeed, ReadService
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import SUBJECTS_KEY
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

T = TypeVar("T")

INBOX = "_INBOX.default"
"""Where nodes may answer: below the inboxes of the realm's users."""

_PATIENCE_S = 90.0
_POLL_S = 0.02


class Realm(Protocol):
    """A suite's access to a realm."""

    def bus(self) -> AbstractAsyncContextManager[Bus]:
        """Start another bus on the realm."""

    async def elapse(self, seconds: int) -> None:
        """Let time pass, unless it passes by itself."""

    async def soon(self, look: Callable[[], Awaitable[T]]) -> T:
        """The first true result of ``look``."""

    async def tamper_with_blob(self, digest: str) -> None:
        """Change the stored bytes."""


async def soon(look: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(_PATIENCE_S):
        while not (found := await look()):
            await asyncio.sleep(_POLL_S)
    return found


def readable(bus: Bus, reply_to: str) -> str:
    """The reply subject of a delivery, which JetStream's bus gives to deciders encrypted."""
    if not isinstance(bus, JetStreamBus):
        return reply_to
    assert reply_to.startswith("~")
    return ReplySeal(bus.subjects.node_token).open(reply_to)


class MemoryRealm:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.server = MemoryServer(lambda: self.now_ms)

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        bus = MemoryBus(self.server)
        await bus.start()
        yield bus
        await bus.stop()

    async def elapse(self, seconds: int) -> None:
        self.now_ms += 1000 * seconds

    async def soon(self, look: Callable[[], Awaitable[T]]) -> T:
        return await soon(look)

    async def tamper_with_blob(self, digest: str) -> None:
        self.server.realm("default").blobs.stored[digest] = b"other bytes"


class JetStreamRealm:
    """A real server, used by the buses and, for what no port offers, by plain nats-py without
    limits."""

    def __init__(self, store: Path) -> None:
        self.server = EmbeddedServer(store, sync="default", admin=True)

    @property
    def client_url(self) -> str:
        return self.server.url_for(Role.CLIENT)

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[JetStreamBus]:
        bus = JetStreamBus(self.server.url)
        await bus.start()
        try:
            yield bus
        finally:
            await bus.stop()

    @asynccontextmanager
    async def serving_bus(self) -> AsyncIterator[JetStreamBus]:
        """A bus that serves reads and uploads, and ignores requests."""
        async with self.bus() as bus:
            await bus.request_endpoint.open(lambda _: None)
            yield bus

    async def elapse(self, seconds: int) -> None:
        """Time passes by itself; tests wait for its effects with ``soon``."""

    async def soon(self, look: Callable[[], Awaitable[T]]) -> T:
        return await soon(look)

    async def tamper_with_blob(self, digest: str) -> None:
        subject = f"$KV.ROOKERY_default_BLOBS.{digest}.0"
        async with self.stock() as client:
            headers = (
                await client.jetstream().get_last_msg("KV_ROOKERY_default_BLOBS", subject)
            ).headers
        await self.put("ROOKERY_default_BLOBS", f"{digest}.0", b"other bytes", headers)

    @asynccontextmanager
    async def stock(self, inbox: str = f"{INBOX}.stock") -> AsyncIterator[Any]:
        client = await nats.connect(
            self.server.admin_url, reconnect_time_wait=0.05, inbox_prefix=inbox
        )
        try:
            yield client
        finally:
            await client.close()

    async def api(self, call: str, query: object = None) -> dict[str, Any]:
        """A call of JetStream's API that no role has."""
        connection = Connection(self.server.admin_url)
        await connection.open()
        try:
            return await connection.api(call, query)
        finally:
            await connection.close()

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        async with self.stock() as client:
            await client.jetstream().publish(subject, body, headers=headers)

    async def put(
        self, bucket: str, key: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Write into a bucket on the secret subject of a node: no other reaches it."""
        subjects = await self.node_subjects()
        await self.publish(subjects.bucket_write(bucket, key), body, headers)

    async def node_subjects(self) -> Subjects:
        """The realm's subjects with the token that its nodes read."""
        subjects = Subjects("default")
        async with self.stock() as client:
            journal = await client.jetstream().stream_info(subjects.journal_stream)
        subjects.set_node_token(journal.config.metadata[SUBJECTS_KEY])
        return subjects

    async def purge(self, stream: str, subject: str) -> None:
        async with self.stock() as client:
            await client.jetstream().purge_stream(stream, subject=subject)

    async def state(self, stream: str) -> Any:
        async with self.stock() as client:
            return (await client.jetstream().stream_info(stream)).state


class NodeRealm(JetStreamRealm):
    """A real server whose journal is followed through a node, as a client follows it."""

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[JetStreamBus]:
        async with super().bus() as bus:
            await serve_reads(bus)
            async with reading(self) as connection:
                bus.feed = NodeFeed(connection, Subjects("default"))  # type: ignore[assignment]
                yield bus


async def serve_reads(bus: JetStreamBus) -> None:
    """Let the bus answer reads, and no requests, until it stops."""
    await ReadService(bus.connection, Subjects("default")).open()


@asynccontextmanager
async def reading(realm: JetStreamRealm, url: str = "") -> AsyncIterator[Connection]:
    """A connection of a client, or of another user."""
    connection = Connection(url or realm.client_url)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@contextmanager
def loses_answers(bus: JetStreamBus) -> Iterator[None]:
    """The server stores writes, but its acks never arrive."""

    async def lose(answer: Coroutine[Any, Any, Message]) -> Message:
        await answer
        raise Failed("SERVER_UNREACHABLE", "the answer was lost")

    with _writes(bus, lose):
        yield


@contextmanager
def stops_writing(bus: JetStreamBus, after: int) -> Iterator[asyncio.Event]:
    """The first ``after`` writes arrive, later ones hang; the event reports the first of those."""
    hanging = asyncio.Event()
    left = after

    async def hang(answer: Coroutine[Any, Any, Message]) -> Message:
        nonlocal left
        left -= 1
        if left >= 0:
            return await answer
        answer.close()
        hanging.set()
        return await asyncio.get_running_loop().create_future()

    with _writes(bus, hang):
        yield hanging


@contextmanager
def _writes(
    bus: JetStreamBus, around: Callable[[Coroutine[Any, Any, Message]], Awaitable[Message]]
) -> Iterator[None]:
    """Requests that write into a bucket go through ``around``."""
    connections: list[Any] = [bus.connection, bus.owner_connection]

    def through(request: Any) -> Any:
        async def asked(message: Outgoing, **patience: float) -> Message:
            answer = request(message, **patience)
            return await (around(answer) if ".kv." in message.subject else answer)

        return asked

    for connection in connections:
        connection.request = through(connection.request)
    try:
        yield
    finally:
        for connection in connections:
            del connection.request
