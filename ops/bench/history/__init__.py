"""The history of the benches' figures, and the comparison of two commits."""

from rookery.ops.bench.history.comparison import WORSE, Change, compare
from rookery.ops.bench.history.records import (
    FILE,
    Record,
    RecordRow,
    check_history,
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
