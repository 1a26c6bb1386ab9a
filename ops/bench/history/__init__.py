"""The history of the benches' figures, and the comparison of two commits."""

from rookery.ops.bench.history.history import (
    FILE,
    WORSE,
    Change,
    Record,
    RecordRow,
    check_history,
    compare,
    find_records,
    read_history,
    record,
)

__all__ = [
    "FILE",
    "WORSE",
    "Change",
    "Record",
    "RecordRow",
    "check_history",
    "compare",
    "find_records",
    "read_history",
    "record",
]
