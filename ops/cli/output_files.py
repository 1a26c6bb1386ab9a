"""Files that commands write: either whole or not at all.

Links are followed. Pipes and devices are written directly.
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
    """A file to write to; it replaces ``file`` when all of it is written."""
    with refuse_file_errors(file):
        path = file.resolve()
        if path.exists() and not path.is_file():
            with path.open("wb") as target:
                yield target
            return
        draft = path.with_name(f"{path.name}.part")
        with draft.open("wb") as target:
            yield target
        draft.replace(path)


@contextmanager
def refuse_file_errors(file: Path) -> Iterator[None]:
    """Report system errors of ``file`` as an invalid argument."""
    try:
        yield
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"{file}: {error.strerror}") from None
