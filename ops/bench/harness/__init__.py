"""The harness of all benches: processes, load windows, baselines and reports."""

from rookery.ops.bench.harness.result_rows import Sync

__all__ = [
    "Sync",
]
