"""Removes credentials from what tools return and say, before it becomes a fact.

A credential is found as it is, in base64, hexadecimal and percent-encoding, whole, or in any part
of ``PART`` characters. What a tool does beyond that, such as to compress or encrypt it, hides it
from every search, and so from this one.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import IO, Any, Final
from urllib.parse import quote

__all__ = ["REMOVED", "ScrubbedStream", "Scrubber", "scrubbed_output", "scrubber_of"]

REMOVED: Final = "[credential]"
PART: Final = 16
"""A shorter part is removed only where it is the whole credential."""
_STEP: Final = PART // 2
"""Every part has a block of this length at a multiple of it: blocks are looked for."""
_BLANKS: Final = tuple(map(chr, range(0xE000, 0xF8FF)))
"""For private use; a text of a megabyte may have some of them."""
_LAST_USED: Final = 32
"""Scrubbers that are held: to make one takes as long as a twentieth of a call."""


class Scrubber:
    """Of one credential; it never changes."""

    def __init__(self, value: str) -> None:
        self._forms = tuple(form for form in dict.fromkeys(_forms(value)) if form)
        self._shortest = min(PART, *map(len, self._forms)) if self._forms else PART
        """No shorter text can have anything to remove."""
        self._whole = tuple(form for form in self._forms if len(form) <= PART)
        self._blocks = frozenset(block for form in self._forms for block in _blocks(form))

    def scrub(self, value: Any) -> Any:
        """A JSON value without the credential, also in the names of fields."""
        match value:
            case str():
                return self.scrub_text(value)
            case dict():
                return {self.scrub(name): self.scrub(inner) for name, inner in value.items()}
            case list() | tuple():
                return [self.scrub(inner) for inner in value]
            case _:
                return value

    def scrub_text(self, text: str) -> str:
        """The text with ``REMOVED`` in the place of the credential and its parts."""
        if len(text) < self._shortest or self._is_clean(text):
            return text
        blank = next((mark for mark in _BLANKS if mark not in text), _BLANKS[0])
        left = text
        for form in self._forms:
            left = _blanked(left, form, blank)
        return text if left is text else re.sub(f"{blank}+", REMOVED, left)

    def _is_clean(self, text: str) -> bool:
        """Whether a look at each place of the text finds nothing. If the text is long, to look for
        each block is faster, and so this does not look."""
        if len(text) > _STEP * len(self._blocks):
            return False
        ends = range(_STEP, len(text) + 1)
        places = map(text.__getitem__, map(slice, range(len(ends)), ends))
        return self._blocks.isdisjoint(places) and not any(one in text for one in self._whole)


@lru_cache(maxsize=_LAST_USED)
def scrubber_of(value: str) -> Scrubber:
    """The scrubber of a credential, which one call after the other uses."""
    return Scrubber(value)


_OUTPUT: Final[ContextVar[Scrubber | None]] = ContextVar("scrubbed output", default=None)


@contextmanager
def scrubbed_output(scrubber: Scrubber) -> Iterator[None]:
    """What this block, or the task it belongs to, prints and logs has no credential, where the
    streams of the process are scrubbed."""
    token = _OUTPUT.set(scrubber)
    try:
        yield
    finally:
        _OUTPUT.reset(token)


class ScrubbedStream:
    """A text stream, such as ``sys.stderr``, without the credential of the call that writes to
    it. Bytes that are written around it are not scrubbed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        scrubber = _OUTPUT.get()
        self._stream.write(text if scrubber is None else scrubber.scrub_text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _forms(value: str) -> Iterable[str]:
    """The credential in every encoding."""
    data = value.encode("utf-8", "surrogatepass")
    yield value
    yield data.hex()
    yield data.hex().upper()
    yield quote(data, safe="")
    yield "".join(f"%{byte:02X}" for byte in data)
    for shift in range(3):  # In base64 it depends on what is in front of it.
        text = b64encode(bytes(shift) + data).decode().rstrip("=")
        inner = text[(0, 2, 3)[shift] : len(text) - (1 if (shift + len(data)) % 3 else 0)]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


def _blocks(form: str) -> Iterator[str]:
    """The blocks of a form whose parts are removed, too."""
    if len(form) > PART:
        for offset in range(0, len(form) - _STEP + 1, _STEP):
            yield form[offset : offset + _STEP]


def _blanked(text: str, form: str, blank: str) -> str:
    """The text with ``blank`` for each character of the form, or of a part of it. What is blank is
    found by no further search, so that the time does not grow with repetitions."""
    if len(form) <= PART:
        return text.replace(form, blank * len(form)) if form in text else text
    text = text.replace(form, blank * len(form)) if form in text else text
    for offset in range(0, len(form) - _STEP + 1, _STEP):
        block = form[offset : offset + _STEP]
        pieces: list[str] = []
        end, at = 0, text.find(block)
        while at >= 0:
            first, last = _extent(text, form, at, offset)
            if last - first >= PART:
                first = max(first, end)
                pieces += [text[end:first], blank * (last - first)]
                end = last
            at = text.find(block, max(end, at + 1))
        if pieces:
            text = "".join([*pieces, text[end:]])
    return text


def _extent(text: str, form: str, at: int, offset: int) -> tuple[int, int]:
    """How far text and form are equal around a block."""
    first, last = at, at + _STEP
    left, right = offset, offset + _STEP
    while first and left and text[first - 1] == form[left - 1]:
        first, left = first - 1, left - 1
    while last < len(text) and right < len(form) and text[last] == form[right]:
        last, right = last + 1, right + 1
    return first, last
