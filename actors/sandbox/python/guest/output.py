"""stdout and stderr of the program: the guest sends each complete line to the host at once.

So output before a time-out or a crash is not lost. The host counts and truncates it.
"""

from __future__ import annotations

import io
from typing import Any

from wit_world import emit

__all__ = ["STDERR", "STDOUT", "Stream"]

_PIECE_CHARS = 4096


class _Bytes(io.RawIOBase):
    """``sys.stdout.buffer``: a stream of bytes over a text stream."""

    def __init__(self, text: Stream) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._text.write(bytes(view).decode(errors="backslashreplace"))
        return len(view)

    def flush(self) -> None:
        self._text.flush()


class Stream(io.TextIOBase):
    """A text stream whose text is sent to the host."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.buffered: list[str] = []
        """What is still to be sent."""
        self._buffered_chars = 0
        self._wanted = True
        self.buffer = _Bytes(self)
        self.name = {1: "<stdout>", 2: "<stderr>"}[number]
        self.mode = "w"

    encoding = "utf-8"
    errors = "backslashreplace"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def reconfigure(self, **_options: object) -> None:
        """Do nothing: a stream is always UTF-8 and line-buffered."""

    def close(self) -> None:
        """Do nothing: a stream stays open as long as its session."""

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._wanted and text:
            self.buffered.append(text)
            self._buffered_chars += len(text)
            if "\n" in text or self._buffered_chars > _PIECE_CHARS:
                self.flush()
        return len(text)

    def flush(self) -> None:
        text = "".join(self.buffered)
        self.clear()
        if text and self._wanted:
            if not text.isascii():  # Lone surrogates have no UTF-8, and would end the guest.
                text = text.encode(errors="backslashreplace").decode()
            self._wanted = emit(self._number, text)

    def clear(self) -> None:
        self.buffered.clear()
        self._buffered_chars = 0

    def begin(self) -> None:
        """Begin a run: clear the buffer and accept output again."""
        self.clear()
        self._wanted = True


STDOUT, STDERR = Stream(1), Stream(2)
