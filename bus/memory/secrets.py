"""A realm's shared secrets, in memory."""

from __future__ import annotations

__all__ = ["MemorySecrets"]


class MemorySecrets:
    """``Secrets``."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    async def get_or_create(self, name: str, proposed: bytes) -> bytes:
        return self._secrets.setdefault(name, proposed)
