"""Where the checkout breaks a law, and the allow-lists of what is left over from before the law.

``allowed.toml`` has a table a law: how often each name or path may still break it. A list may only
shrink: what is found beyond it fails, and so does an entry that is no longer needed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = [
    "ALLOWED",
    "Allowed",
    "Finding",
    "counted",
    "judged",
    "read",
    "shrunk",
    "toml",
    "unsettled",
]

ALLOWED: Final = Path(__file__).with_name("allowed.toml")
SHRINK: Final = "python -m tests.laws.census --shrink"

Allowed = Mapping[str, int]
Settled = Mapping[str, tuple[int, str]]


class Finding(NamedTuple):
    """One place that breaks a law."""

    key: str
    """Its name in the allow-list: a name where that says enough, for names survive moves."""
    where: str
    do: str
    """What to do about it."""
    size: int = 1
    """By how much it breaks the law, where that can be said."""


def counted(found: Iterable[Finding]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for finding in found:
        sums[finding.key] = sums.get(finding.key, 0) + finding.size
    return dict(sorted(sums.items()))


def judged(
    law: str, found: Iterable[Finding], allowed: Allowed, settled: Settled | None = None
) -> list[str]:
    """A line for each finding that is not allowed, and for each entry that is not needed."""
    found, settled = list(found), settled or {}
    today = counted(found)
    lines = []
    for key, count in today.items():
        limit = allowed.get(key, 0) + settled.get(key, (0, ""))[0]
        if count > limit:
            lines += [f"{finding.where}: {finding.do}" for finding in found if finding.key == key]
            if limit:
                lines.append(f"  ({law} allows `{key}` {limit}, now {count}: undo what is new)")
    left = unsettled(today, settled)
    lines += [
        f"{ALLOWED.name}: {law} allows `{key}` {limit}, {left.get(key, 0)} left: run `{SHRINK}`"
        for key, limit in allowed.items()
        if left.get(key, 0) < limit
    ]
    return lines + [
        f"vocabulary.py: `{key}` is settled for {law} {times} times, and found {today.get(key, 0)}"
        for key, (times, _) in settled.items()
        if today.get(key, 0) < times
    ]


def unsettled(today: Allowed, settled: Settled) -> dict[str, int]:
    """What the allow-list has to hold: all but what breaks the law for good."""
    left = {key: count - settled.get(key, (0, ""))[0] for key, count in today.items()}
    return {key: count for key, count in left.items() if count > 0}


def shrunk(today: Allowed, allowed: Allowed) -> dict[str, int] | None:
    """The allow-list for what is found today; ``None`` if more is found than is allowed in all.

    A name or path may replace another, for things move and are renamed one step at a time.
    """
    if sum(today.values()) > sum(allowed.values()):
        return None
    return dict(today)


def read(path: Path = ALLOWED) -> dict[str, dict[str, Any]]:
    """The allow-list of each law; for long files the reasons why they are."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def toml(lists: Mapping[str, Mapping[str, int | str]]) -> str:
    """The file with these lists."""
    lines = [
        "# What still breaks a law of the house, and how often. Lists may only shrink:",
        f"# `{SHRINK}` writes them anew, and refuses what would make one longer.",
    ]
    for law, allowed in lists.items():
        lines += ["", f"[{law}]"]
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in allowed.items()]
    return "\n".join(lines) + "\n"
