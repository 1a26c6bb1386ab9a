"""A bucket: the newest message of every key, replaced by compare-and-swap on its sequence.

On the wire it is a NATS key-value bucket, so stock tools can read it. Nodes alone write it, on a
subject with the node token that the stream stores as ``$KV.<bucket>.<key>``, by raw publishes:
nats-py cannot combine a time to live with an expected sequence. This module defines the stream's
configuration; keys and bodies belong to its callers.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rookery.bus.nats import (
    EXPECTED_SEQUENCE,
    MESSAGE_NOT_FOUND,
    AckVerdict,
    ApiError,
    Connection,
    Message,
    Outgoing,
    decode_ack,
    direct_page,
    header_value,
    status_of,
)
from rookery.bus.streams import StreamSpec
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed, Refused

__all__ = ["Bucket", "BucketEntry"]

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
