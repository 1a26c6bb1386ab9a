"""A bad link between two servers: it loses, repeats, reorders and delays messages, and is cut.

It takes the place of the hub for a leaf node, and knows the protocol of leaf nodes as far as to
tell messages from the rest, which it forwards as it is. The servers compress nothing on it.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Final

__all__ = ["FAULTS", "BadLink"]

FAULTS: Final = ("lost", "repeated", "reordered", "delayed")
_MESSAGES: Final = (b"LMSG ", b"HMSG ")
_COMPRESSION: Final = re.compile(rb'"compression":"[^"]*"')
DELAY_S: Final = 0.05
REORDER_S: Final = 0.02
"""A message that is held back and has none to follow is forwarded after so long."""


class BadLink:
    """One listening port, whose connections go to the port of a hub."""

    def __init__(self, target: int, random: Random) -> None:
        self._target, self._random = target, random
        self.rates: Mapping[str, float] = {}
        """How probable each fault is for a message."""
        self._listener: asyncio.Server
        self._ends: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self.counts: Counter[str] = Counter()
        """Of messages, and of each kind of fault."""
        self.port = 0

    async def open(self, port: int = 0) -> None:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._listener.close()
        self._abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def cut(self, seconds: float) -> None:
        """End all connections, and let none begin for a time."""
        self._is_cut = True
        self.counts["cut"] += 1
        self._abort()
        await asyncio.sleep(seconds)
        self._is_cut = False

    def _abort(self) -> None:
        for end in tuple(self._ends):
            end.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ends = {writer, back}
            self._ends |= ends
            try:
                ways = (self._forward(reader, back), self._forward(there, writer))
                tasks = [asyncio.create_task(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.transport.abort()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._ends -= ends

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held: list[bytes] = []

        def release() -> None:
            while held and not writer.transport.is_closing():
                writer.write(held.pop())

        with suppress(OSError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                if not line.startswith(_MESSAGES):
                    writer.write(_COMPRESSION.sub(b'"compression":"not supported"', line))
                    continue
                message = line + await reader.readexactly(int(line.split()[-1]) + 2)
                self.counts["messages"] += 1
                if self._happens("reordered") and not held:
                    held.append(message)
                    asyncio.get_running_loop().call_later(REORDER_S, release)
                    continue
                await self._pass_on(message, writer)
                release()
                await writer.drain()

    async def _pass_on(self, message: bytes, writer: asyncio.StreamWriter) -> None:
        if self._happens("lost"):
            return
        if self._happens("delayed"):
            await asyncio.sleep(self._random.uniform(0, DELAY_S))
        writer.write(message)
        if self._happens("repeated"):
            writer.write(message)

    def _happens(self, fault: str) -> bool:
        if self._random.random() >= self.rates.get(fault, 0.0):
            return False
        self.counts[fault] += 1
        return True
