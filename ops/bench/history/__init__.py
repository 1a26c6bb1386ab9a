"""The history of the benches' figures, and the comparison of two commits."""

from rookery.ops.bench.history.history import WORSE, Change, Record, check_history, record

__all__ = ["WORSE", "Change", "Record", "check_history", "record"]
