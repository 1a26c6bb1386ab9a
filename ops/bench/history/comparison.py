"""The verdict on two records: each row that both have, and by how much it became worse."""

from __future__ import annotations

from math import inf

import msgspec

from rookery.ops.bench.history.records import Record, RecordRow
from rookery.schemas.errors import Refused

__all__ = ["WORSE", "Change", "compare"]

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
