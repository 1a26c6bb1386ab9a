"""A cable between two ports of this machine, which can be pulled out and plugged in again.

It forwards bytes and knows no protocol, so it may carry TLS and routes. While it is out both ends
stay connected and nothing arrives, as when a network loses every packet: new connections are
accepted and remain silent, and no end of a connection is seen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["Relay"]

CHUNK_BYTES = 1 << 18


class Relay:
    """One listening port; its connections are forwarded to ``target``."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener: asyncio.Server
        self._serving: set[asyncio.Task[None]] = set()
        self._plugged = asyncio.Event()
        self._plugged.set()
        self.port = 0

    async def open(self) -> Relay:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        self._listener.close()
        for serving in tuple(self._serving):
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def unplug(self) -> None:
        self._plugged.clear()

    def plug(self) -> None:
        """What was on its way arrives now."""
        self._plugged.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self._plugged.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(back)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, back))
                group.create_task(self._forward(there, writer))
        except OSError:  # The target does not listen.
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                await self._plugged.wait()
                writer.write(chunk)
                await writer.drain()
            await self._plugged.wait()
        writer.close()
