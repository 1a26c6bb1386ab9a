"""Exclusive names with a time to live: a key-value bucket whose messages expire by themselves.

The token is the message's sequence and every change is a compare-and-swap on it, so two holders
never hold one name. It refuses to be the only fence: a holder that was paused beyond its time to
live does not know, so what it writes is fenced by the journal's turns as well. A request that has
no answer within a quarter of the time to live fails: what is heard later is of no use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.bus.nats import header_value
from rookery.bus.ports import Claim
from rookery.bus.storage.bucket import Bucket, BucketEntry
from rookery.bus.subjects import decode_token, encode_token
from rookery.schemas.errors import Failed, Refused

__all__ = ["JetStreamClaims", "check_claim", "claim_lost"]

_HOLDER = "Rookery-Holder"
_AFTER = "Rookery-After"
"""The token that was renewed or seized: tells our own write, whose ack was lost, from others."""

TIMEOUTS_PER_TTL = 4
RELEASE_S = 2.0

_TOMBSTONE = (("KV-Operation", "DEL"), ("Nats-TTL", "1s"))


class _StoredClaim(NamedTuple):
    """What stands under a name; without a holder nobody has it."""

    sequence: int = 0
    holder: str = ""
    after: int = 0
    value: bytes = b""


class JetStreamClaims:
    """``Claims`` in a bucket without limit markers: one would keep an expired name taken."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.spec = bucket.spec(
            allow_msg_ttl=True, subject_delete_marker_ttl=None, persist_mode=None
        )

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        check_claim(name, holder, ttl_s)
        while True:
            found = await self._bucket.get_from_leader(
                encode_token(name), timeout_s=_timeout_s(ttl_s)
            )
            standing = _decode_claim(found)
            if standing.holder not in ("", holder):
                return None
            token = await self._bucket.put(
                encode_token(name),
                value,
                expected=standing.sequence,
                headers=_claim_headers(holder, ttl_s),
                timeout_s=_timeout_s(ttl_s),
            )
            if token is not None:
                return Claim(name, holder, token, value)

    async def renew(self, claim: Claim, ttl_s: int, value: bytes = b"") -> Claim:
        renewed = await self.take_from_dead(claim, claim.holder, ttl_s, value)
        if renewed is None:
            raise claim_lost(claim)
        return renewed

    async def take_from_dead(
        self, claim: Claim, holder: str, ttl_s: int, value: bytes = b""
    ) -> Claim | None:
        check_claim(claim.name, holder, ttl_s)
        headers = [*_claim_headers(holder, ttl_s), (_AFTER, str(claim.token))]
        token = await self._replace(claim, holder, value, headers, _timeout_s(ttl_s))
        return None if token is None else Claim(claim.name, holder, token, value)

    async def release(self, claim: Claim) -> None:
        await self._replace(claim, claim.holder, b"", _TOMBSTONE, RELEASE_S)

    async def list(self, prefix: str = "") -> list[Claim]:
        claims = []
        for entry in await self._bucket.all():
            name, standing = decode_token(entry.key), _decode_claim(entry)
            if standing.holder and name.startswith(prefix):
                claims.append(Claim(name, standing.holder, standing.sequence, standing.value))
        return claims

    async def _replace(
        self,
        claim: Claim,
        holder: str,
        value: bytes,
        headers: Sequence[tuple[str, str]],
        timeout_s: float,
    ) -> int | None:
        """The token of what now stands in place of ``claim``, or ``None`` if that was gone.

        If ``holder`` has replaced this very claim before and only the ack was lost, that
        replacement is replaced: the caller gets the full time to live either way.
        """
        key, expected = encode_token(claim.name), claim.token
        while True:
            token = await self._bucket.put(
                key, value, expected=expected, headers=headers, timeout_s=timeout_s
            )
            if token is not None:
                return token
            standing = _decode_claim(await self._bucket.get_from_leader(key, timeout_s=timeout_s))
            if standing.holder != holder or standing.after != claim.token:
                return None
            expected = standing.sequence


def check_claim(name: str, holder: str, ttl_s: int) -> None:
    """Refuse what cannot be claimed, by nobody, or for a time the server cannot count."""
    if not name or not holder:
        raise Refused("INVALID_ARGUMENT", f"{holder!r} cannot claim {name!r}: both need a name")
    if ttl_s < 1:
        raise Refused("INVALID_ARGUMENT", f"a time to live is at least 1 s, not {ttl_s} s")


def claim_lost(claim: Claim) -> Failed:
    return Failed("CLAIM_LOST", f"{claim.holder!r} no longer holds {claim.name!r}")


def _timeout_s(ttl_s: int) -> float:
    return ttl_s / TIMEOUTS_PER_TTL


def _claim_headers(holder: str, ttl_s: int) -> list[tuple[str, str]]:
    return [(_HOLDER, encode_token(holder)), ("Nats-TTL", f"{ttl_s}s")]


def _decode_claim(entry: BucketEntry | None) -> _StoredClaim:
    if entry is None:
        return _StoredClaim()
    holder = header_value(entry.header, _HOLDER.encode())
    after = header_value(entry.header, _AFTER.encode())
    return _StoredClaim(entry.sequence, decode_token(holder), int(after or 0), entry.body)
