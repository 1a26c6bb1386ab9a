"""A progress line on a terminal while a command reads a long journal.

It is written to stderr, rewritten in place and erased at the end.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rookery.bus.journal import JetStreamJournal
from rookery.bus.ports import Filter, StoredMessage

__all__ = ["ProgressJournal", "ReadProgress", "read_progress"]

LONG_MESSAGES: Final = 20_000
"""A shorter journal is read too fast for a progress line."""
_ERASE: Final = "\r\x1b[K"


class ReadProgress:
    """The progress line; it shows the share of ``total``."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream = total, stream
        self._shown = ""

    def update(self, done: int) -> None:
        line = f"reading the journal: {100 * done // self._total} % of {self._total:,} messages"
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
