"""What an entity remembers of the commands it worked off: enough to know a repeat from a reuse.

Kept for a day and for at most 10,000 commands, counted in the time of facts, so that folding the
same history always remembers the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["DEDUP_COMMANDS_MAX", "DEDUP_MS", "DedupWindow"]

DEDUP_MS = 24 * 3_600_000
DEDUP_COMMANDS_MAX = 10_000


class DedupWindow:
    """Command ids in the order they were first seen, each with its body's digest."""

    def __init__(self, entries: Iterable[tuple[str, str, int]] = ()) -> None:
        self._seen: dict[str, tuple[str, int]] = {i: (digest, at) for i, digest, at in entries}

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return ((i, digest, at) for i, (digest, at) in self._seen.items())

    def digest_of(self, command_id: str) -> str | None:
        """The digest the command had, ``None`` if it is not remembered."""
        found = self._seen.get(command_id)
        return None if found is None else found[0]

    def add(self, command_id: str, digest: str, at_ms: int) -> None:
        """Forget what is too old, or too much with this one; then note it."""
        seen = self._seen
        while seen and next(iter(seen.values()))[1] < at_ms - DEDUP_MS:
            del seen[next(iter(seen))]
        seen.setdefault(command_id, (digest, at_ms))
        if len(seen) > DEDUP_COMMANDS_MAX:
            del seen[next(iter(seen))]
