"""The history of the figures: one line a commit, with ratios only, so that machines compare.

``rookery bench NAMES --record`` (and ``profile``, ``peers``) writes the rows of the current commit
to ``ops/bench/history.jsonl``. ``compare`` is the verdict on two records: each row that both have,
and by how much it became worse.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec

from rookery.bus.clock import SystemClock
from rookery.ops.bench.harness.result_rows import HISTORY, current_commit
from rookery.schemas.errors import Refused

__all__ = [
    "FILE",
    "WORSE",
    "Change",
    "CommitComparison",
    "Record",
    "RecordRow",
    "check_history",
    "compare",
    "find_records",
    "read_history",
    "record",
]

FILE = Path(__file__).parents[1] / Path(HISTORY).name


class RecordRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure, relative to a baseline of the same measurement."""

    name: str
    ratio: float
    to: str
    """The baseline; ``one run`` or ``one call`` for counts."""
    higher_is_better: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one commit on one machine."""

    date: str
    commit: str
    machine: str
    load: tuple[float, float, float]
    """The load average when the newest rows were recorded: a busy machine has other ratios."""
    rows: tuple[RecordRow, ...]


def record(rows: Iterable[RecordRow], file: Path = FILE) -> Record:
    """Write the rows to the line of the current commit, which is replaced or appended."""
    now = Record(
        date=datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).date().isoformat(),
        commit=current_commit(),
        machine=f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}",
        load=_rounded_load(),
        rows=tuple(rows),
    )
    records = read_history(file)
    if records and (records[-1].commit, records[-1].machine) == (now.commit, now.machine):
        now = msgspec.structs.replace(now, rows=_merged(records.pop().rows, now.rows))
    lines = [msgspec.json.encode(each) + b"\n" for each in (*records, now)]
    file.write_bytes(b"".join(lines))
    return now


def check_history(file: Path) -> None:
    """``Refused`` if the file cannot take a record: before a measurement, not after it."""
    read_history(file)
    try:
        file.open("ab").close()
    except OSError as error:
        raise _inaccessible(file, error) from None


def read_history(file: Path = FILE) -> list[Record]:
    """All records, oldest first; ``Refused`` if a line is no record."""
    try:
        lines = file.read_bytes().splitlines() if file.exists() else []
    except OSError as error:
        raise _inaccessible(file, error) from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=Record))
        except msgspec.DecodeError as error:
            raise Refused(
                "INVALID_ARGUMENT",
                f"line {number} of {file} is no record: {error}",
                hint="delete that line, or restore the file from git",
            ) from None
    return found


def find_records(
    records: Sequence[Record], before: str | None, after: str | None
) -> tuple[Record, Record]:
    """The two records to compare: by commit, else the last and the one before it."""
    newer = len(records) - 1 if after is None else _position(records, after)
    older = newer - 1 if before is None else _position(records, before)
    if min(newer, older) < 0:
        raise Refused(
            "INVALID_ARGUMENT",
            f"a comparison needs two records, the history has {len(records)}",
            hint=f"rookery bench profile --record {HISTORY}",
        )
    return records[older], records[newer]


def _inaccessible(file: Path, error: OSError) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"the history {file} is not accessible: {error.strerror}",
        hint="name a file in a folder that exists",
    )


def _position(records: Sequence[Record], commit: str) -> int:
    """The newest record of this commit."""
    for position in reversed(range(len(records))):
        if records[position].commit.startswith(commit):
            return position
    known = ", ".join(record.commit for record in records) or "no commit"
    raise Refused("INVALID_ARGUMENT", f"no record of {commit!r}", hint=f"recorded: {known}")


def _merged(before: Sequence[RecordRow], after: Sequence[RecordRow]) -> tuple[RecordRow, ...]:
    """The rows of both; a row that was measured again has its new ratio."""
    rows = {(row.name, row.to): row for row in (*before, *after)}
    return tuple(rows.values())


def _rounded_load() -> tuple[float, float, float]:
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)


WORSE = 1.2
"""A row whose ratio changed by more than this factor is worse: less is noise of the machine."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One row of two records."""

    name: str
    to: str
    before: float
    after: float
    worse_by: float
    """Above 1 the newer record is worse, below 1 better."""

    @property
    def worse(self) -> bool:
        return self.worse_by > WORSE


def compare(before: Record, after: Record) -> list[Change]:
    """The rows that both records have, the worst first."""
    earlier = {(row.name, row.to): row for row in before.rows}
    changes = [
        _change(earlier[row.name, row.to], row)
        for row in after.rows
        if (row.name, row.to) in earlier
    ]
    if not changes:
        raise Refused(
            "INVALID_ARGUMENT",
            f"the records of {before.commit} and {after.commit} have no row in common",
            hint="record both with the same commands",
        )
    return sorted(changes, key=lambda change: -change.worse_by)


class CommitComparison(NamedTuple):
    """Two records of a history, and how their rows differ."""

    before: Record
    after: Record
    changes: Sequence[Change]

    @classmethod
    def of(cls, file: Path | None, before: str | None, after: str | None) -> CommitComparison:
        """By commit, else of the last record and the one before it; ``file``: that of this
        checkout, if none is named."""
        older, newer = find_records(read_history(file or FILE), before, after)
        return cls(older, newer, compare(older, newer))

    @property
    def is_worse(self) -> bool:
        return any(change.worse for change in self.changes)


def _change(before: RecordRow, after: RecordRow) -> Change:
    old, new = before.ratio, after.ratio
    if after.higher_is_better:
        old, new = new, old
    worse_by = new / old if old > 0 else (1.0 if new <= 0 else inf)
    return Change(
        name=after.name,
        to=after.to,
        before=before.ratio,
        after=after.ratio,
        worse_by=worse_by,
    )
