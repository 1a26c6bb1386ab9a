"""Claims in memory: the twin of ``rookery.bus.storage.claims``, shared by all buses of a memory
server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from rookery.bus.ports import Claim
from rookery.bus.storage.claims import check_claim, claim_lost

__all__ = ["MemoryClaims"]


class _HeldClaim(NamedTuple):
    claim: Claim
    after: int
    """Token of the claim it was made of by renewing or seizing."""
    expires_ms: int


class MemoryClaims:
    """``Claims`` in a dictionary, expiring by the clock it is given."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tokens = count(1)
        self._held: dict[str, _HeldClaim] = {}

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        check_claim(name, holder, ttl_s)
        standing = self._current(name)
        if standing is not None and standing.holder != holder:
            return None
        return self._store(name, holder, ttl_s, value, after=0)

    async def renew(self, claim: Claim, ttl_s: int, value: bytes = b"") -> Claim:
        renewed = await self.take_from_dead(claim, claim.holder, ttl_s, value)
        if renewed is None:
            raise claim_lost(claim)
        return renewed

    async def take_from_dead(
        self, claim: Claim, holder: str, ttl_s: int, value: bytes = b""
    ) -> Claim | None:
        check_claim(claim.name, holder, ttl_s)
        if not self._is_current(claim, holder):
            return None
        return self._store(claim.name, holder, ttl_s, value, after=claim.token)

    async def release(self, claim: Claim) -> None:
        if self._is_current(claim, claim.holder):
            del self._held[claim.name]

    async def list(self, prefix: str = "") -> list[Claim]:
        names = [name for name in self._held if name.startswith(prefix)]
        return [claim for name in names if (claim := self._current(name)) is not None]

    def _store(self, name: str, holder: str, ttl_s: int, value: bytes, after: int) -> Claim:
        claim = Claim(name, holder, next(self._tokens), value)
        self._held[name] = _HeldClaim(claim, after, self._now_ms() + 1000 * ttl_s)
        return claim

    def _current(self, name: str) -> Claim | None:
        held = self._held.get(name)
        return held.claim if held and self._now_ms() < held.expires_ms else None

    def _is_current(self, claim: Claim, holder: str) -> bool:
        """Whether ``claim`` stands, or what ``holder`` has made of it before."""
        standing = self._current(claim.name)
        if standing is None or standing.token == claim.token:
            return standing is not None
        return standing.holder == holder and self._held[claim.name].after == claim.token
