"""A realm's shared secrets, in memory."""

from __future__ import annotations

__all__ = ["MemoryVault"]


class MemoryVault:
    """``Vault``."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    async def secret(self, name: str, proposed: bytes) -> bytes:
        return self._secrets.setdefault(name, proposed)
