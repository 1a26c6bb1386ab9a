"""The server by stdio: lines of JSON on the process's own streams, until its client closes them.

The SDK reads and writes with threads, which a signal cannot end; these streams belong to the event
loop.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from mcp.server.stdio import stdio_server

from rookery.ops.mcp_server.server import RealmMcpServer
from rookery.schemas.errors import Refused

__all__ = ["serve_stdio"]

LINE_BYTES_MAX: Final = 16 << 20
"""Of one message; a client that sends a longer one is disconnected."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


async def serve_stdio(server: RealmMcpServer) -> None:
    """Serve one client until it closes its end. What else this process prints goes to stderr."""
    messages = _InputLines(await _open_input(), server.stop)
    wire = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    output = await _OutputLines.open(wire)
    try:
        async with (
            server.open(),
            stdio_server(cast("Any", messages), cast("Any", output)) as (received, replies),
        ):
            await server.protocol.run(received, replies, server.initialization)
    finally:
        output.close()
    if messages.error is not None:
        raise messages.error


async def _open_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(LINE_BYTES_MAX)
    if _is_pollable(_STDIN):
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    else:
        reader.feed_data(await asyncio.to_thread(sys.stdin.buffer.read))
        reader.feed_eof()
    return reader


def _is_pollable(descriptor: int) -> bool:
    """Whether an event loop can wait for it: a file or ``/dev/null`` it cannot."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class _InputLines:
    """Messages of the client, a line each."""

    def __init__(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        self._reader, self._on_end = reader, on_end
        self.error: Refused | None = None
        """Why the messages ended, if the client did not end them."""

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            while line := await self._reader.readline():
                yield line.decode("utf-8", "replace")
        except ValueError:
            text = f"a message has more than {LINE_BYTES_MAX} bytes"
            self.error = Refused("PAYLOAD_TOO_LARGE", text)
        finally:
            self._on_end()


class _OutputLines:
    """Messages for the client, a line each."""

    def __init__(self, descriptor: int, writer: asyncio.StreamWriter | None) -> None:
        self._descriptor, self._writer = descriptor, writer

    @classmethod
    async def open(cls, descriptor: int) -> _OutputLines:
        if not _is_pollable(descriptor):
            return cls(descriptor, None)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", closefd=False)
        )
        return cls(descriptor, asyncio.StreamWriter(transport, protocol, None, loop))

    async def write(self, line: str) -> None:
        if self._writer is None:
            os.write(self._descriptor, line.encode())
        else:
            self._writer.write(line.encode())

    async def flush(self) -> None:
        if self._writer is not None:
            await self._writer.drain()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
