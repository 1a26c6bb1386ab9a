"""What a realm's nodes share and nobody else may read: made once, by whoever needs it first.

It is as secret as the server's token keeps it; what is worth more is to be sealed before.
"""

from __future__ import annotations

from rookery.bus.storage.bucket import Bucket
from rookery.bus.subjects import encode_token

__all__ = ["JetStreamVault"]


class JetStreamVault:
    """``Vault`` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.spec = bucket.spec()

    async def standing(self, name: str) -> bytes | None:
        """What stands under ``name``, if anything does."""
        entry = await self._bucket.newest(encode_token(name))
        return None if entry is None else entry.body

    async def secret(self, name: str, proposed: bytes) -> bytes:
        key = encode_token(name)
        while True:
            standing = await self._bucket.newest(key)
            if standing is not None:
                return standing.body
            if await self._bucket.put(key, proposed, expected=0) is not None:
                return proposed
