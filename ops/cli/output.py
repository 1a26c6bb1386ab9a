"""The output of commands: tables for people, JSON for programs, errors with a code and a hint.

Results go to stdout; with ``--json`` errors go there, too, as a JSON object. A file is written
either whole or not at all; links are followed, pipes and devices are written directly.
"""

from __future__ import annotations

import codecs
import json as ascii_json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Refused

__all__ = [
    "LAYOUT",
    "OUTPUT_FAILED",
    "OutputFailed",
    "atomic_file",
    "clock_time",
    "escape_unencodable",
    "exit_code",
    "print_danger",
    "print_error",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "refuse_file_errors",
    "write_content",
    "writing",
]

USAGE, REFUSED, NOT_FOUND, UNREACHABLE, FILE_CHANGED = 2, 3, 4, 5, 8
OUTPUT_FAILED = 74
"""EX_IOERR: the command succeeded and its result could not be printed."""

_UNREACHABLE = {"SERVER_UNREACHABLE", "SERVER_NOT_FOUND", "SERVER_START_FAILED"}
_UNREACHABLE |= {"NO_ANSWER", "PARTITION_UNOWNED", "WORKER_UNAVAILABLE"}
_NOT_FOUND = {"UNKNOWN_TOOL"}
_USAGE = {"CONFIG_UNKNOWN_KEY", "CONFIG_INVALID", "INVALID_ARGUMENT", "INVALID_SESSION_ID"}


def print_json(value: object) -> None:
    """Print ``value`` on its own line and flush, since a reader may follow the output."""
    print_line(encode_json(value).decode())


def print_line(text: str, end: str = "\n") -> None:
    with writing():
        print(text, end=end, flush=True)


class OutputFailed(Exception):
    """Standard output cannot be written; the message says why."""


@contextmanager
def writing() -> Iterator[None]:
    """Report system errors in this block as errors of standard output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(error.strerror) from None


def escape_unencodable() -> None:
    """Escape characters that stdout cannot encode as JSON does, so that JSON stays valid."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPING)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPING = "rookery.json"
codecs.register_error(_ESCAPING, _escaped)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print ``rows`` under ``columns``; no cell is cut, so that ids can be copied."""
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
    return "" if value is None else printable(" ".join(str(value).splitlines()))


LAYOUT: Final = "\n\t"
"""What ``printable`` keeps of text that is printed as it is."""


def printable(text: str, keep: str = "") -> str:
    """Text of programs and people without control characters, except for those in ``keep``: they
    could hide lines, or command the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in text)


def _width(cell: str) -> int:
    """The width of a cell; for ASCII its length, which is ten times faster than ``cell_len``."""
    return len(cell) if cell.isascii() else cell_len(cell)


def _padded(cell: str, width: int) -> str:
    return cell.ljust(width) if cell.isascii() else set_cell_size(cell, width)


def clock_time(at_ms: int) -> str:
    """Local time to the millisecond."""
    moment = datetime.fromtimestamp(at_ms / 1000)  # noqa: DTZ006 - local time is wanted.
    return moment.isoformat(" ", "milliseconds")


def print_danger(line: str) -> None:
    """Print a line to stderr, in red on a terminal."""
    Console(stderr=True, highlight=False).print(Text(line, "bold red"), soft_wrap=True)


def exit_code(error: CodedError) -> int:
    """The exit code: 2 usage, 3 refused, 4 not found, 5 unreachable, 8 an export was changed, 1 any
    other error; ``journal verify`` has more."""
    if error.code == "EXPORT_CORRUPT":
        return FILE_CHANGED
    if error.code in _UNREACHABLE:
        return UNREACHABLE
    if error.code in _NOT_FOUND or error.code.endswith("_NOT_FOUND"):
        return NOT_FOUND
    if error.code in _USAGE:
        return USAGE
    return REFUSED if isinstance(error, Refused) else 1


def print_error(error: CodedError, *, json: bool) -> None:
    """Print ``CODE: message`` and the hint."""
    if json:
        fields = {"code": error.code, "message": error.message, "hint": error.hint or None}
        print_json({"error": fields})
        return
    lines = [f"{error.code}: {error.message}", *([f"hint: {error.hint}"] if error.hint else ())]
    print(printable("\n".join(lines), LAYOUT), file=sys.stderr)


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


def write_content(data: bytes, out: Path | None) -> None:
    """Write the bytes of a file, to stdout unless ``out`` is given."""
    if out is None:
        with writing():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        return
    with atomic_file(out) as target:
        target.write(data)
