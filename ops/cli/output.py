"""How commands speak: tables for people, stable JSON for programs, errors with a code and a hint.

Results go to stdout; with ``--json`` an error does too, as the object a program expects there.
"""

from __future__ import annotations

import codecs
import json as ascii_json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from io import TextIOWrapper
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Refused

__all__ = [
    "OUTPUT_FAILED",
    "OutputFailed",
    "clock_time",
    "escape_unencodable",
    "exit_code",
    "print_error",
    "print_json",
    "print_line",
    "print_table",
    "writing",
]

USAGE, REFUSED, NOT_FOUND, UNREACHABLE = 2, 3, 4, 5
OUTPUT_FAILED = 74
"""EX_IOERR: what was asked for is done and could not be shown."""

_UNREACHABLE = {"SERVER_UNREACHABLE", "SERVER_NOT_FOUND", "SERVER_START_FAILED"}
_UNREACHABLE |= {"NO_ANSWER", "PARTITION_UNOWNED", "WORKER_UNAVAILABLE"}
_NOT_FOUND = {"UNKNOWN_TOOL"}
_USAGE = {"CONFIG_UNKNOWN_KEY", "CONFIG_INVALID", "INVALID_ARGUMENT", "INVALID_SESSION_ID"}


def print_json(value: object) -> None:
    """``value`` on a line of its own, at once: somebody may be reading along."""
    print_line(encode_json(value).decode())


def print_line(text: str, end: str = "\n") -> None:
    with writing():
        print(text, end=end, flush=True)


class OutputFailed(Exception):
    """Standard output takes no more; why."""


@contextmanager
def writing() -> Iterator[None]:
    """What the system complains of meanwhile is stdout."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(error.strerror) from None


def escape_unencodable() -> None:
    """As JSON writes it: what is JSON stays JSON."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPING)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPING = "rookery.json"
codecs.register_error(_ESCAPING, _escaped)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """``rows`` under ``columns``; no cell is cut or broken: ids are there to be copied."""
    table = [[_cell(value) for value in row] for row in rows]
    if not table:
        print_line(empty)
        return
    widths = [max(map(_width, cells)) for cells in zip(columns, *table, strict=True)]
    head, *lines = ("  ".join(map(_padded, cells, widths)).rstrip() for cells in (columns, *table))
    with writing():
        Console(highlight=False).print(Text(head, "bold"), soft_wrap=True)
    print_line("\n".join(lines))


def _cell(value: object) -> str:
    return "" if value is None else " ".join(str(value).splitlines())


def _width(cell: str) -> int:
    """rich needs ten times as long to find that plain text is as wide as it is long."""
    return len(cell) if cell.isascii() else cell_len(cell)


def _padded(cell: str, width: int) -> str:
    return cell.ljust(width) if cell.isascii() else set_cell_size(cell, width)


def clock_time(at_ms: int) -> str:
    """Local time to the millisecond, as a person compares it with a watch."""
    moment = datetime.fromtimestamp(at_ms / 1000)  # noqa: DTZ006 - local is what is wanted.
    return moment.isoformat(" ", "milliseconds")


def exit_code(error: CodedError) -> int:
    """What the shell is told: 2 usage, 3 refused, 4 not found, 5 unreachable, 1 anything else."""
    if error.code in _UNREACHABLE:
        return UNREACHABLE
    if error.code in _NOT_FOUND or error.code.endswith("_NOT_FOUND"):
        return NOT_FOUND
    if error.code in _USAGE:
        return USAGE
    return REFUSED if isinstance(error, Refused) else 1


def print_error(error: CodedError, *, json: bool) -> None:
    """``CODE: message`` and what to type next."""
    if json:
        told = {"code": error.code, "message": error.message, "hint": error.hint or None}
        print_json({"error": told})
        return
    print(f"{error.code}: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
