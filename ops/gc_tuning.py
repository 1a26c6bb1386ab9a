"""Settings of Python's garbage collector for a process that is a node and nothing else.

A node creates thousands of short-lived objects a second and holds its entities for long. With the
defaults the collector scans these entities repeatedly (14 % of a busy node's processor time,
measured), and while a node starts with 1,000 parked runs it takes more than a second.
"""

from __future__ import annotations

import gc

__all__ = ["tune_gc", "tune_gc_for_start"]


def tune_gc_for_start() -> None:
    """Collect hardly anything while a node starts: nearly all that it creates then will stay."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 100)


def tune_gc() -> None:
    """Exempt all present objects from collection, and collect young objects less often. Garbage
    among them stays; a collection now would take longer than it is worth."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)
