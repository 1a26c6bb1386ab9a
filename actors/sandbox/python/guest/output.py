"""stdout and stderr of the program: every line goes to the host as soon as it is complete.

What was printed before a time-out or a crash is therefore not lost. The host counts and cuts.
"""

from __future__ import annotations

import io
from typing import Any

from wit_world import emit

__all__ = ["STDERR", "STDOUT", "Stream"]

_PIECE_CHARS = 4096


class _Bytes(io.RawIOBase):
    """What a program that writes bytes calls ``sys.stdout.buffer``."""

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
    """A text stream that ends at the host."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._kept: list[str] = []
        self._kept_chars = 0
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
        """It is UTF-8, and every line goes out at once, whatever is asked for."""

    def close(self) -> None:
        """It is open as long as the session is."""

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._wanted and text:
            self._kept.append(text)
            self._kept_chars += len(text)
            if "\n" in text or self._kept_chars > _PIECE_CHARS:
                self.flush()
        return len(text)

    def flush(self) -> None:
        text = "".join(self._kept)
        self.forget()
        if text and self._wanted:
            if not text.isascii():  # Lone surrogates have no UTF-8, and would end the guest.
                text = text.encode(errors="backslashreplace").decode()
            self._wanted = emit(self._number, text)

    def forget(self) -> None:
        self._kept.clear()
        self._kept_chars = 0

    def begin(self) -> None:
        """A new run: nothing kept, everything wanted."""
        self.forget()
        self._wanted = True


STDOUT, STDERR = Stream(1), Stream(2)
