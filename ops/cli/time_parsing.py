"""Times on the command line: a duration before now, or a date and time.

A date without a zone is in local time, as all printed times are.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from rookery.schemas.errors import Refused

__all__ = ["parse_time_ms"]

_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str, now_ms: int) -> int:
    """``10m`` is ten minutes before ``now_ms``; ``2026-05-01T12:00`` is a local time."""
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is no time",
            hint="use 30s, 10m, 2h or 1d for a time before now, or 2026-05-01T12:00",
        ) from None
