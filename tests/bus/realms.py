"""One realm on either kind of server, for suites that test both; buses join and leave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import nats

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.nats.connection import Message, Outgoing
from rookery.bus.ports import Bus
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Failed

T = TypeVar("T")

_PATIENCE_S = 20.0
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
    """A real server, used by the buses and, for what no port offers, by plain nats-py."""

    def __init__(self, store: Path) -> None:
        self.server = EmbeddedServer(store, sync="default")

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[JetStreamBus]:
        bus = JetStreamBus(self.server.url)
        await bus.start()
        try:
            yield bus
        finally:
            await bus.stop()

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
            await client.jetstream().publish(subject, b"other bytes", headers=headers)

    @asynccontextmanager
    async def stock(self) -> AsyncIterator[Any]:
        client = await nats.connect(self.server.url, reconnect_time_wait=0.05)
        try:
            yield client
        finally:
            await client.close()

    async def publish(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        async with self.stock() as client:
            await client.jetstream().publish(subject, body, headers=headers)

    async def purge(self, stream: str, subject: str) -> None:
        async with self.stock() as client:
            await client.jetstream().purge_stream(stream, subject=subject)

    async def state(self, stream: str) -> Any:
        async with self.stock() as client:
            return (await client.jetstream().stream_info(stream)).state


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
        async def asked(message: Outgoing, *, timeout_s: float = 2.0) -> Message:
            answer = request(message, timeout_s=timeout_s)
            return await (around(answer) if message.subject.startswith("$KV.") else answer)

        return asked

    for connection in connections:
        connection.request = through(connection.request)
    try:
        yield
    finally:
        for connection in connections:
            del connection.request
