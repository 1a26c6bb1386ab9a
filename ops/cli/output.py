"""How commands speak: tables for people, stable JSON for programs, errors with a code and a hint.

Results go to stdout; with ``--json`` an error does too, as the object a program expects there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Refused

__all__ = ["clock_time", "exit_code", "print_error", "print_json", "print_line", "print_table"]

_TABLE_COLUMNS_MAX = 10_000
USAGE, REFUSED, NOT_FOUND, UNREACHABLE = 2, 3, 4, 5

_UNREACHABLE = {"SERVER_UNREACHABLE", "SERVER_NOT_FOUND", "SERVER_START_FAILED"}
_UNREACHABLE |= {"NO_ANSWER", "PARTITION_UNOWNED"}
_USAGE = {"CONFIG_UNKNOWN_KEY", "CONFIG_INVALID", "INVALID_ARGUMENT", "INVALID_SESSION_ID"}


def print_json(value: object) -> None:
    """``value`` on a line of its own, at once: somebody may be reading along."""
    print_line(encode_json(value).decode())


def print_line(text: str) -> None:
    print(text, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """``rows`` under ``columns``; no cell is cut or broken: ids are there to be copied."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    if not table.row_count:
        print_line(empty)
        return
    console = Console(width=_TABLE_COLUMNS_MAX)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print_line(line.rstrip())


def clock_time(at_ms: int) -> str:
    """Local time to the millisecond, as a person compares it with a watch."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def exit_code(error: CodedError) -> int:
    """What the shell is told: 2 usage, 3 refused, 4 not found, 5 unreachable, 1 anything else."""
    if error.code in _UNREACHABLE:
        return UNREACHABLE
    if error.code.endswith("_NOT_FOUND"):
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
