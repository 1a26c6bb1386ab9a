"""Files that commands write: whole or not at all, and where the user said.

A link is followed. A pipe or a device is written to as it is, for there is nothing to replace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rookery.schemas.errors import Refused

__all__ = ["atomic_file", "refuse_file_errors"]


@contextmanager
def atomic_file(file: Path) -> Iterator[BinaryIO]:
    """A file to write to; it takes the place of what was there when all of it is written."""
    with refuse_file_errors(file):
        place = file.resolve()
        if place.exists() and not place.is_file():
            with place.open("wb") as target:
                yield target
            return
        draft = place.with_name(f"{place.name}.part")
        with draft.open("wb") as target:
            yield target
        draft.replace(place)


@contextmanager
def refuse_file_errors(file: Path) -> Iterator[None]:
    """What the system says of ``file`` is a matter of what was typed."""
    try:
        yield
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"{file}: {error.strerror}") from None
