"""How much memory this process holds."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["resident_bytes"]

_ROLLUP = Path("/proc/self/smaps_rollup")


def resident_bytes() -> int:
    """What processes and instances share counts once. Where the system does not tell it: the most
    resident memory there ever was, which only grows."""
    if _ROLLUP.exists():
        (kilobytes,) = re.findall(r"^Pss:\s+(\d+) kB", _ROLLUP.read_text(), re.MULTILINE)
        return int(kilobytes) * 1024
    import resource  # noqa: PLC0415 - where there is no /proc, there is this.

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
