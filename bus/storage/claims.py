"""Claims: exclusive names with a time to live, in a bucket whose messages expire by themselves.

The token is the message's sequence, and every change is a compare-and-swap on it, so a name has one
holder. A holder that was paused beyond its time to live does not know that it lost the claim, so
the journal's terms fence its appends as well. A request without a reply within a quarter of the
time to live, or a shorter time, fails: its holder tries again while the claim lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.bus.nats import header_value
from rookery.bus.ports import Claim
from rookery.bus.storage.bucket import Bucket, BucketEntry
from rookery.bus.streams import StreamSpec
from rookery.bus.subjects import decode_token, encode_token
from rookery.schemas.errors import Failed, Refused

__all__ = ["JetStreamClaims", "check_claim", "claim_lost"]

_HOLDER = "Rookery-Holder"
_AFTER = "Rookery-After"
"""The token that was renewed or seized; it identifies the holder's own write after a lost ack."""

TIMEOUTS_PER_TTL = 4
TIMEOUT_S_MAX = 1.5
"""A server without a leader drops requests: the next one may find a leader."""
RELEASE_S = 2.0

_TOMBSTONE = (("KV-Operation", "DEL"), ("Nats-TTL", "1s"))


class _StoredClaim(NamedTuple):
    """The value of a name; without a holder the name is free."""

    sequence: int = 0
    holder: str = ""
    after: int = 0
    value: bytes = b""


class JetStreamClaims:
    """Port ``Claims`` in a bucket without limit markers, which would block an expired name."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def spec(self) -> StreamSpec:
        return self._bucket.spec(
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
        """The token of the message that replaced ``claim``, or ``None`` if the claim was lost.

        If ``holder`` has replaced this very claim before and the ack was lost, the replacement is
        replaced: either way the caller has the full time to live.
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
    """Refuse an empty name or holder, or a time to live the server cannot count."""
    if not name or not holder:
        raise Refused("INVALID_ARGUMENT", f"{holder!r} cannot claim {name!r}: both need a name")
    if ttl_s < 1:
        raise Refused("INVALID_ARGUMENT", f"a time to live is at least 1 s, not {ttl_s} s")


def claim_lost(claim: Claim) -> Failed:
    return Failed("CLAIM_LOST", f"{claim.holder!r} no longer holds {claim.name!r}")


def _timeout_s(ttl_s: int) -> float:
    return min(ttl_s / TIMEOUTS_PER_TTL, TIMEOUT_S_MAX)


def _claim_headers(holder: str, ttl_s: int) -> list[tuple[str, str]]:
    return [(_HOLDER, encode_token(holder)), ("Nats-TTL", f"{ttl_s}s")]


def _decode_claim(entry: BucketEntry | None) -> _StoredClaim:
    if entry is None:
        return _StoredClaim()
    holder = header_value(entry.header, _HOLDER.encode())
    after = header_value(entry.header, _AFTER.encode())
    return _StoredClaim(entry.sequence, decode_token(holder), int(after or 0), entry.body)
