"""Queries to the journal's stream, and the conversion of what the server answers."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.clock import monotonic_s
from rookery.bus.jetstream_api import MESSAGE_ID, MESSAGE_NOT_FOUND, ApiError, DeliveryInfo
from rookery.bus.nats import Connection, Message
from rookery.bus.nats.batch_client import header_value
from rookery.bus.nats.direct_get import direct_page
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import HELD_BY, EntityId
from rookery.schemas.errors import Failed

__all__ = [
    "CHAIN",
    "JournalReader",
    "LeaderLag",
    "from_answer",
    "from_delivery",
    "from_page",
    "matcher",
]

# --- leader lag -----------------------------------------------------------------------------------

# How far the leader of a replicated journal may be behind what its readers have seen.
#
# A server that has just become the leader has every acknowledged message in its log and may still
# be applying them, so for a moment its stream ends before the position of a reader (seen: 6,500
# messages after a rolling restart). A journal with one copy that ends there was truncated or
# replaced.


_LAG_S_MAX: Final = 15.0


class LeaderLag:
    """Decides what a journal that ends too early means to one reader."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def check(self, last: int, position: int, copies: int) -> None:
        """Raise if the journal ends before the position: ``Failed`` SERVER_UNREACHABLE while its
        leader may catch up, then FEED_GAP."""
        if last >= position:
            self._since_s = None
            return
        now_s = monotonic_s()
        if copies > 1 and self._since_s is None:
            self._since_s = now_s
        if self._since_s is not None and now_s - self._since_s < _LAG_S_MAX:
            raise Failed("SERVER_UNREACHABLE", f"the journal's leader has {last} of {position}")
        raise Failed(
            "FEED_GAP",
            f"the journal ends at {last}, before the position {position}: "
            "it was truncated or replaced",
        )


# --- stored message -------------------------------------------------------------------------------

# Conversion of JetStream's messages to ``StoredMessage``, and the matching of filters.
#
# JetStream has three forms of a stored message: a consumer's delivery (numbers in the reply
# subject), a direct get (numbers in headers) and the leader's API (base64 in JSON).


CHAIN = "Rookery-Chain"
KINDS = "Rookery-Facts"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MESSAGE_ID = MESSAGE_ID.encode()
_CHAIN = CHAIN.encode()


def from_delivery(message: Message, info: DeliveryInfo, subjects: Subjects) -> StoredMessage:
    """A message that a consumer delivered."""
    header = message.header
    return StoredMessage(
        info.sequence,
        subjects.entity(message.subject),
        header_value(header, _MESSAGE_ID),
        header_value(header, _CHAIN),
        message.body,
        info.stored_at_ms,
    )


def from_page(message: Message, subjects: Subjects) -> StoredMessage:
    """A message of a direct get."""
    header = message.header
    return StoredMessage(
        int(header_value(header, b"Nats-Sequence")),
        subjects.entity(header_value(header, b"Nats-Subject")),
        header_value(header, _MESSAGE_ID),
        header_value(header, _CHAIN),
        message.body,
        _milliseconds(header_value(header, b"Nats-Time-Stamp")),
    )


def from_answer(answer: dict[str, Any], subjects: Subjects) -> StoredMessage:
    """The message in a reply to ``STREAM.MSG.GET``."""
    message = answer["message"]
    header = b64decode(message.get("hdrs", ""))
    return StoredMessage(
        message["seq"],
        subjects.entity(message["subject"]),
        header_value(header, _MESSAGE_ID),
        header_value(header, _CHAIN),
        b64decode(message.get("data", "")),
        _milliseconds(message["time"]),
    )


def _milliseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND


# --- filters ------------------------------------------------------------------------------------


class _FactHead(msgspec.Struct):
    type: str = ""
    run: str = ""


_heads = msgspec.json.Decoder(list[_FactHead]).decode


def matcher(where: Filter) -> Callable[[StoredMessage], bool]:
    """A test whether a filter selects a message; it searches bytes before it decodes."""
    run, family = where.run, where.family
    needle = encode_json(run)[1:-1] if run is not None else b""
    kind = f'"{family}.'.encode()

    def has_family(stored: StoredMessage) -> bool:
        if family is None or stored.entity.family == family:
            return True
        if HELD_BY.get(family) != stored.entity.family or kind not in stored.body:
            return False
        return any(head.type.startswith(f"{family}.") for head in _heads_of(stored.body))

    def has_run(body: bytes) -> bool:
        return any(head.run == run for head in _heads_of(body))

    def matches(stored: StoredMessage) -> bool:
        entity = stored.entity
        return (
            (where.key is None or entity.key == where.key)
            and has_family(stored)
            and (run is None or (needle in stored.body and has_run(stored.body)))
        )

    return matches


def _heads_of(body: bytes) -> list[_FactHead]:
    try:
        return _heads(body)
    except msgspec.DecodeError:
        return []  # A sealed or damaged body names neither.


# --- reader ---------------------------------------------------------------------------------------

# Queries to the journal's stream: an entity's messages, and the end of the journal.
#
# Single messages come from the leader (``STREAM.MSG.GET``). Pages come by direct get, which in a
# cluster a lagging follower may serve, so a read continues up to the leader's last message. Every
# query raises ``Failed`` SERVER_UNREACHABLE if no reply arrives.


_STALE_PAUSE_S = 0.02
_STALE_MAX = 250


class FirstPage(NamedTuple):
    """What a scan begins with."""

    messages: list[StoredMessage]
    end: int
    """The sequence of the last message that the scan is to return."""
    is_intact: bool
    """The stream has lost no message above the scan's begin."""


class JournalReader:
    """Reads the journal's stream."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._get = f"STREAM.MSG.GET.{subjects.journal_stream}"

    async def end(self) -> int:
        """The last sequence of the journal."""
        return int((await self._state())["last_seq"])

    async def copies(self) -> int:
        """How many copies of the journal there are to be."""
        return int((await self._info())["config"].get("num_replicas") or 1)

    async def last(self, entity: EntityId) -> StoredMessage | None:
        """The entity's last message."""
        return await self._one({"last_by_subj": self._subjects.fact(entity)})

    async def last_of_key(self, key: str) -> StoredMessage | None:
        """The last message of any family under ``key``."""
        return await self._one({"last_by_subj": self._subjects.facts(Filter(key=key))})

    async def at(self, sequence: int) -> StoredMessage | None:
        """The message at ``sequence``."""
        return await self._one({"seq": sequence})

    async def next(self, entity: EntityId, after: int) -> StoredMessage | None:
        """The entity's first message above sequence ``after``."""
        return await self._one({"seq": after + 1, "next_by_subj": self._subjects.fact(entity)})

    async def next_of_any_copy(self, entity: EntityId, after: int) -> StoredMessage | None:
        """The same by whichever server has it, also while JetStream elects its leader; ``None``
        proves nothing."""
        stream, subject = self._subjects.journal_stream, self._subjects.fact(entity)
        page = await direct_page(self._connection, stream, subject, after, messages_max=1)
        return from_page(page.messages[0], self._subjects) if page.messages else None

    async def read(self, entity: EntityId, after: int) -> list[StoredMessage]:
        """The entity's messages above ``after``, up to the leader's last one.

        The read may take any time as long as pages keep arriving.
        """
        subject = self._subjects.fact(entity)
        last, found = await asyncio.gather(self.last(entity), self._page(subject, after))
        end = last.sequence if last else 0
        while (at := found[-1].sequence if found else after) < end:
            found += await self.next_page(subject, at, end)
        return found

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        """The messages of all families under ``key``; ``None`` if they are more than one page of
        ``messages_max``, or if a follower sent the page and lags behind the leader."""
        stream, subject = self._subjects.journal_stream, self._subjects.facts(Filter(key=key))
        last, page = await asyncio.gather(
            self.last_of_key(key),
            direct_page(self._connection, stream, subject, 0, messages_max=messages_max),
        )
        found = [from_page(message, self._subjects) for message in page.messages]
        is_behind = last is not None and (not found or found[-1].sequence < last.sequence)
        return None if page.has_more or is_behind else found

    async def first_page(self, subject: str, after: int) -> FirstPage:
        """The first messages on ``subject`` above ``after``, up to the leader's last one."""
        info, last, found = await asyncio.gather(
            self._state(), self._one({"last_by_subj": subject}), self._page(subject, after)
        )
        end = 0 if last is None else last.sequence
        page = [one for one in found if one.sequence <= end]
        is_intact = not info.get("num_deleted") and info["first_seq"] <= after + 1
        return FirstPage(page, max(end, after), is_intact=is_intact)

    async def next_page(self, subject: str, after: int, end: int) -> list[StoredMessage]:
        """The next messages on ``subject`` above ``after``, at least one, up to the one at
        ``end``."""
        for _ in range(_STALE_MAX):
            if page := await self._page(subject, after):
                return [one for one in page if one.sequence <= end]
            await asyncio.sleep(_STALE_PAUSE_S)  # The follower lags.
        raise Failed("SERVER_UNREACHABLE", f"no replica has {subject} from {after} to {end}")

    async def _one(self, query: dict[str, str | int]) -> StoredMessage | None:
        try:
            answer = await self._connection.api(self._get, query)
        except ApiError as error:
            if error.err_code in MESSAGE_NOT_FOUND:
                return None
            raise _unavailable(error) from None
        return from_answer(answer, self._subjects)

    async def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self._info())["state"]
        return state

    async def _info(self) -> dict[str, Any]:
        try:
            return await self._connection.api(f"STREAM.INFO.{self._subjects.journal_stream}")
        except ApiError as error:
            raise _unavailable(error) from None

    async def _page(self, subject: str, after: int) -> list[StoredMessage]:
        page = await direct_page(self._connection, self._subjects.journal_stream, subject, after)
        return [from_page(message, self._subjects) for message in page.messages]


def _unavailable(error: ApiError) -> Failed:
    return Failed("SERVER_UNREACHABLE", f"the journal's stream does not answer: {error}")
