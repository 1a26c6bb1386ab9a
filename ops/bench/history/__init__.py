"""The history of the benches' figures, and the comparison of two commits."""

from __future__ import annotations

from rookery.ops.bench.history.history import WORSE, Change, CommitComparison, check_history, record

__all__ = ["WORSE", "Change", "CommitComparison", "check_history", "record"]
