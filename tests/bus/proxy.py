"""A network that misbehaves on order: a TCP proxy in front of a NATS server.

It can swallow messages on their way to the client, slow them down, hold back what goes one way or
both, and cut the connection. Every connection through it is treated alike, and a hook sees each
message before it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

__all__ = ["DOWN", "UP", "Proxy", "Way", "proxied"]

Way = Literal["up", "down"]
UP: Way = "up"
"""To the server."""
DOWN: Way = "down"
"""To the client."""
WITH_PAYLOAD = (b"PUB ", b"HPUB ", b"MSG ", b"HMSG ")


class Proxy:
    """One listening port; its connections are forwarded to the server."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._listener: asyncio.Server
        self._lines: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flows = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self.release()
        self.watch: Callable[[Way, bytes], None] = lambda _way, _message: None
        """Receives each message with its subject and headers before it is forwarded; may block."""
        self.swallows: Callable[[bytes], bool] = lambda _body: False
        """Decides on each message to a client by its body."""
        self.pause_s = 0.0
        """Delay of each message to a client."""
        self.swallowed: list[bytes] = []
        self.passed: list[bytes] = []
        """Forwarded bodies."""

    @property
    def url(self) -> str:
        """The server's URL with the proxy's port."""
        port = self._listener.sockets[0].getsockname()[1]
        user, _, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def hold(self, *ways: Way) -> None:
        """Hold back these directions until ``release``; by default the one to clients. The sender
        gets no error."""
        for way in ways or (DOWN,):
            self._flows[way].clear()

    def release(self) -> None:
        """Forward what was held back, in order."""
        for flow in self._flows.values():
            flow.set()

    def cut(self) -> None:
        """Close all connections and drop what was held back. New ones are accepted."""
        for line in self._lines:
            line.transport.abort()
        self.release()

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    async def close(self) -> None:
        self._listener.close()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._listener.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            up_reader, up_writer = await asyncio.open_connection(
                self._target.hostname, self._target.port
            )
            ends = {writer, up_writer}
            self._lines |= ends
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_through(self._to_server(reader, up_writer), ends))
                    group.create_task(_through(self._to_client(up_reader, writer), ends))
            finally:
                self._lines -= ends
        writer.close()

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line, payload in _messages(reader):
            await self._pass_on(UP, line + payload, writer)

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line, payload in _messages(reader):
            if payload:
                body = payload[:-2]
                if self.swallows(body):
                    self.swallowed.append(body)
                    continue
                self.passed.append(body)
                await asyncio.sleep(self.pause_s)
            await self._pass_on(DOWN, line + payload, writer)

    async def _pass_on(self, way: Way, message: bytes, writer: asyncio.StreamWriter) -> None:
        self.watch(way, message)
        await self._flows[way].wait()
        writer.write(message)
        await writer.drain()


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    """Lines of the protocol, each with its payload, if any."""
    while line := await reader.readline():
        size = int(line.split()[-1]) + 2 if line.upper().startswith(WITH_PAYLOAD) else 0
        yield line, await reader.readexactly(size)


async def _through(pump: object, ends: set[asyncio.StreamWriter]) -> None:
    """One direction; its end closes the other."""
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            await pump  # type: ignore[misc]
    finally:
        for end in ends:
            end.close()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
