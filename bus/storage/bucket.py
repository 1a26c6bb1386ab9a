"""Buckets: the newest message of every key, by compare-and-swap; and claims, which expire."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rookery.bus.jetstream_api import (
    EXPECTED_SEQUENCE,
    MESSAGE_NOT_FOUND,
    AckVerdict,
    ApiError,
    decode_ack,
    status_of,
)
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import header_value
from rookery.bus.nats.direct_get import direct_page
from rookery.bus.ports import Claim
from rookery.bus.streams import StreamSpec
from rookery.bus.subjects import Subjects, decode_token, encode_token
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "Bucket",
    "BucketEntry",
    "JetStreamClaims",
    "check_claim",
    "claim_lost",
]

# --- bucket ---------------------------------------------------------------------------------------

# A bucket: the newest message of every key, replaced by compare-and-swap on its sequence.
#
# On the wire it is a NATS key-value bucket, so stock tools can read it. Nodes alone write it, on a
# subject with the node token that the stream stores as ``$KV.<bucket>.<key>``, by raw publishes:
# nats-py cannot combine a time to live with an expected sequence. This module defines the stream's
# configuration; keys and bodies belong to its callers.


_TIMEOUT_S = 5.0
_BODY_TIMEOUT_S, _BODY_AGAIN_S = 10.0, 2.0
"""Half a mebibyte and an fsync on a bad minute of the disk."""


class BucketEntry(NamedTuple):
    """The message of a key."""

    key: str
    sequence: int
    header: bytes
    body: bytes


class _StoredEntry(msgspec.Struct):
    subject: str
    seq: int
    hdrs: str = ""
    data: str = ""


class Bucket:
    """One bucket, read from the leader unless a method says otherwise."""

    def __init__(self, connection: Connection, subjects: Subjects, name: str) -> None:
        self._connection, self._subjects, self._name = connection, subjects, name
        self._prefix = f"$KV.{name}."
        self._stream = f"KV_{name}"

    def spec(self, **demands: object) -> StreamSpec:
        """The bucket's stream, with further demands of its caller."""
        every = {
            "subjects": [written := self._subjects.bucket_write(self._name, ">")],
            "subject_transform": {"src": written, "dest": f"{self._prefix}>"},
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "max_age": 0,
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "sealed": None,
            "mirror": None,
        }
        stock_tools_expect = {"allow_rollup_hdrs": True, "deny_delete": True}
        return StreamSpec(self._stream, every | demands, stock_tools_expect)

    async def put(
        self,
        key: str,
        body: bytes,
        *,
        expected: int | None = None,
        headers: Sequence[tuple[str, str]] = (),
        timeout_s: float = _BODY_TIMEOUT_S,
    ) -> int | None:
        """Replace the message of ``key`` and return its sequence.

        ``None`` if the key's sequence is not ``expected`` (0: no message).
        """
        if expected is not None:
            headers = [*headers, (EXPECTED_SEQUENCE, str(expected))]
        subject = self._subjects.bucket_write(self._name, key)
        message = Outgoing(subject, body, headers=headers)
        reply = await self._connection.request(message, timeout_s=timeout_s)
        ack = decode_ack(reply)
        text = f"{self._stream} refused {len(body)} bytes: {ack.description}"
        match ack.verdict:
            case AckVerdict.STORED:
                return ack.sequence
            case AckVerdict.STALE:
                return None
            case AckVerdict.TOO_LARGE:
                raise Refused("PAYLOAD_TOO_LARGE", text)
            case AckVerdict.FULL:
                raise Failed("JOURNAL_FULL", text)
            case _:
                raise Failed("SERVER_UNREACHABLE", text)

    async def remove(self, key: str, *, before: int) -> None:
        """Delete all messages of ``key`` with sequences below ``before``."""
        query: dict[str, str | int] = {"filter": self._prefix + key, "seq": before}
        await self._stream_api("STREAM.PURGE", query)

    async def get_from_leader(
        self, key: str, *, timeout_s: float = _TIMEOUT_S
    ) -> BucketEntry | None:
        """The message of ``key``."""
        query = {"last_by_subj": self._prefix + key}
        answer = await self._stream_api("STREAM.MSG.GET", query, timeout_s)
        if answer is None:
            return None
        found = msgspec.convert(answer["message"], _StoredEntry)
        return BucketEntry(key, found.seq, b64decode(found.hdrs), b64decode(found.data))

    async def get_from_any(self, key: str) -> BucketEntry | None:
        """The message of ``key`` on any replica, for values that never change or may be old.

        A replica may lag, so the leader is asked before the result is ``None``.
        """
        question = Outgoing(f"$JS.API.DIRECT.GET.{self._stream}.{self._prefix}{key}", b"")
        reply = await self._connection.request(
            question, timeout_s=_BODY_TIMEOUT_S, again_s=_BODY_AGAIN_S
        )
        return await self.get_from_leader(key) if status_of(reply) else self._entry(reply)

    async def all(self) -> list[BucketEntry]:
        """The messages of all keys, from any replica, oldest first."""
        entries: list[BucketEntry] = []
        while True:
            after = entries[-1].sequence if entries else 0
            page = await direct_page(self._connection, self._stream, f"{self._prefix}>", after)
            entries += map(self._entry, page.messages)
            if not page.has_more:
                return entries

    async def keys(self, pattern: str) -> list[str]:
        """The existing keys that match ``pattern`` (NATS wildcards); reads no bodies."""
        query = {"subjects_filter": self._prefix + pattern}
        answer = await self._stream_api("STREAM.INFO", query)
        subjects: dict[str, int] = (answer or {})["state"].get("subjects") or {}
        return [subject.removeprefix(self._prefix) for subject in subjects]

    async def _stream_api(
        self, verb: str, query: Mapping[str, str | int], timeout_s: float = _TIMEOUT_S
    ) -> dict[str, Any] | None:
        """The stream's answer; ``None`` if the message does not exist."""
        try:
            return await self._connection.api(f"{verb}.{self._stream}", query, timeout_s=timeout_s)
        except ApiError as error:
            if error.err_code in MESSAGE_NOT_FOUND:
                return None
            raise Failed("SERVER_UNREACHABLE", f"{self._stream} does not answer: {error}") from None

    def _entry(self, message: Message) -> BucketEntry:
        subject = header_value(message.header, b"Nats-Subject")
        return BucketEntry(
            subject.removeprefix(self._prefix),
            int(header_value(message.header, b"Nats-Sequence")),
            message.header,
            message.body,
        )


# --- claims ---------------------------------------------------------------------------------------

# Claims: exclusive names with a time to live, in a bucket whose messages expire by themselves.
#
# The token is the message's sequence, and every change is a compare-and-swap on it, so a name has
# one holder. A holder that was paused beyond its time to live does not know that it lost the claim,
# so the journal's terms fence its appends as well. A request without a reply within a quarter of
# the time to live, or a shorter time, fails: its holder tries again while the claim lives.


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
