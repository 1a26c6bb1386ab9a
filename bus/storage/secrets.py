"""What a realm's nodes share and nobody else may read: made once, by whoever needs it first.

It is as secret as the server's token keeps it; what is worth more is to be sealed before.
"""

from __future__ import annotations

from rookery.bus.storage.bucket import Bucket
from rookery.bus.subjects import encode_token

__all__ = ["JetStreamSecrets"]


class JetStreamSecrets:
    """``Secrets`` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.spec = bucket.spec()

    async def get(self, name: str) -> bytes | None:
        """What stands under ``name``, if anything does."""
        entry = await self._bucket.get_from_leader(encode_token(name))
        return None if entry is None else entry.body

    async def get_or_create(self, name: str, proposed: bytes) -> bytes:
        key = encode_token(name)
        while True:
            standing = await self._bucket.get_from_leader(key)
            if standing is not None:
                return standing.body
            if await self._bucket.put(key, proposed, expected=0) is not None:
                return proposed
