"""Histories of entities: read once for a key; and restarted where they cannot be folded."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable
from zlib import compress, decompress

import msgspec

from rookery.actors.kernel import Decider, Effect
from rookery.bus.ports import AppendRequest, Journal, StoredMessage
from rookery.schemas.codec import restarts_history
from rookery.schemas.digest import ZERO_CHAIN
from rookery.schemas.envelope import Command, EntityId, Fact, HistoryRestart
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.ids import reaction_id

__all__ = [
    "HISTORY_COMMANDS",
    "OTHER_VERSIONS",
    "HistoryCheck",
    "HistoryFold",
    "HistoryView",
    "KeyHistories",
    "NotifyHistoryBroken",
    "RestartHistory",
    "Restartable",
    "chain_end",
    "first_fact_number",
    "history_broken_effects",
    "last_fact_number",
    "last_restart",
]

# --- key histories --------------------------------------------------------------------------------

# ``KeyHistories``: the messages of the keys that a node works on, read from the journal once.
#
# Several entities share a key, and each of their loads needs its messages: its own history, and the
# facts of other families. While the node owns a key, it alone appends to it. So the messages are
# read together when the first of them is needed, and each commit adds its own. Long histories are
# left to entity snapshots.


MESSAGES_MAX = 48
"""Of one key when it is read; some runs that wait for calls have ten."""
KEY_BYTES_MAX = 256 << 10
BYTES_MAX = 32 << 20
MESSAGE_BYTES = 400
"""Memory of a message beside its body."""
LONG_KEYS_MAX = 10_000


@dataclass(slots=True)
class _Messages:
    """Messages of one key, in order."""

    messages: list[StoredMessage] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, message: StoredMessage) -> int:
        """Add a message, unless it is there; how many bytes of memory that uses. Acknowledgements
        may come out of order, and late."""
        messages, sequence = self.messages, message.sequence
        place = len(messages)
        while place and messages[place - 1].sequence > sequence:
            place -= 1
        if place and messages[place - 1].sequence == sequence:
            return 0
        messages.insert(place, message)
        size_bytes = len(message.body) + MESSAGE_BYTES
        self.size_bytes += size_bytes
        return size_bytes


@dataclass(slots=True)
class _Read:
    """A read in progress."""

    appended: _Messages = field(default_factory=_Messages)
    """The commits that were acknowledged since it began."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class KeyHistories:
    """One per node; lives on the loop."""

    def __init__(self, journal: Journal, owns: Callable[[str], bool]) -> None:
        """``owns``: whether this node has begun a term for the key, so that no other appends."""
        self._journal, self._owns = journal, owns
        self._known: OrderedDict[str, _Messages] = OrderedDict()
        """The complete histories, the longest unused first."""
        self._size_bytes = 0
        self._reads: dict[str, _Read] = {}
        self._long: OrderedDict[str, None] = OrderedDict()
        """Keys with too many messages."""

    async def of_key(self, key: str) -> list[StoredMessage] | None:
        """All messages under ``key``; ``None`` if they are too many, or the key is not owned."""
        while self._owns(key) and key not in self._long:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return list(known.messages)
            if (reading := self._reads.get(key)) is not None:
                await reading.ended.wait()
            else:
                await self._read(key)
        return None

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        """The entity's messages above sequence ``after``, in order."""
        known = await self.of_key(entity.key)
        if known is None:
            return await self._journal.read(entity, after)
        return [one for one in known if one.sequence > after and one.entity == entity]

    async def last(self, entity: EntityId) -> StoredMessage | None:
        """The entity's last message."""
        known = await self.of_key(entity.key)
        if known is None:
            return await self._journal.last(entity)
        return next((one for one in reversed(known) if one.entity == entity), None)

    def add(self, append: AppendRequest, sequence: int, at_ms: int) -> None:
        """Add a message that this node has appended."""
        key = append.entity.key
        known, reading = self._known.get(key), self._reads.get(key)
        if known is None and reading is None:
            return
        message = StoredMessage(
            sequence, append.entity, append.message_id, append.chain, append.body, at_ms
        )
        if reading is not None:
            reading.appended.add(message)
        if known is not None:
            self._size_bytes += known.add(message)
            if known.size_bytes > KEY_BYTES_MAX:
                self.drop(key)
            self._shrink()

    def drop(self, key: str) -> None:
        """Read the key again when it is next needed: another node may have appended to it."""
        self._reads.pop(key, None)
        if (known := self._known.pop(key, None)) is not None:
            self._size_bytes -= known.size_bytes

    def drop_keys(self, is_lost: Callable[[str], bool]) -> None:
        """Drop the keys that another node owns or may have owned meanwhile."""
        for key in [key for key in (*self._known, *self._reads, *self._long) if is_lost(key)]:
            self.drop(key)
            self._long.pop(key, None)

    async def _read(self, key: str) -> None:
        """Read the key, unless it is dropped meanwhile."""
        reading = self._reads[key] = _Read()
        try:
            found = await self._journal.of_key(key, MESSAGES_MAX)
            if self._reads.get(key) is reading:
                self._store(key, found, reading.appended.messages)
        finally:
            if self._reads.get(key) is reading:
                del self._reads[key]
            reading.ended.set()

    def _store(
        self, key: str, found: list[StoredMessage] | None, appended: list[StoredMessage]
    ) -> None:
        history = _Messages()
        for message in (*(found or ()), *appended):
            history.add(message)
        if found is None or history.size_bytes > KEY_BYTES_MAX:
            self._long[key] = None
            if len(self._long) > LONG_KEYS_MAX:
                self._long.popitem(last=False)
            return
        self._known[key] = history
        self._size_bytes += history.size_bytes
        self._shrink()

    def _shrink(self) -> None:
        """Drop the histories that were unused for longest, beyond the limit."""
        while self._size_bytes > BYTES_MAX and len(self._known) > 1:
            self.drop(next(iter(self._known)))


# --- history restart ------------------------------------------------------------------------------

# Entities whose history cannot be folded: how they are detected, and how their history restarts.
#
# A node fails at the first message that it cannot use (``Entity.fold``). ``HistoryFold`` goes on as
# if that message were not there, and so finds every such message.
#
# A ``HistoryRestart`` fact is committed. The messages before it stay as they are and remain in the
# digest chain; no later version folds them. The sender of the restart must know that nothing in
# them is needed.


OTHER_VERSIONS: Final = frozenset(
    {"FACT_UNKNOWN", "FACT_VERSION_UNSUPPORTED", "SEALED_UNSUPPORTED"}
)
"""Codes of facts that another version may be able to read."""
_FASTEST: Final = 1
_NUMBER: Final = rb'"id":"%b\.([0-9]{1,18})"'


class NotifyHistoryBroken(Effect, frozen=True, kw_only=True):
    """Report to those that wait for the family that its history is broken."""

    session: str
    family: str
    code: str
    message: str


class HistoryCheck(msgspec.Struct, frozen=True):
    """A query: can the entity's history be folded, as the journal has it now?"""


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    code: str = ""
    """Why the history cannot be folded; empty if it can."""
    message: str = ""


class RestartHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Restart an entity's history if it cannot be folded; otherwise nothing follows."""

    generation: int
    handled: dict[str, int] = {}
    """Per family, how many of its facts count as handled: the entity never reacts to them."""

    def causes(self, entity: EntityId) -> tuple[str, ...]:
        """The reaction ids in the restart fact's ``cause``, so that these facts cause no
        reaction."""
        key, family = entity.key, entity.family
        return tuple(
            reaction_id(f"{other}.{key}.{number}", family)
            for other, number in self.handled.items()
            if number
        )


HISTORY_COMMANDS: Final = frozenset((HistoryCheck, RestartHistory))
"""Commands the kernel itself answers for every entity."""


@runtime_checkable
class Restartable(Protocol):
    """A decider whose entities can restart their history."""

    restart_fact: type[HistoryRestart]
    """The fact of a restart; folding it gives a fresh state."""

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """The effects that report a broken history when ``command`` arrives."""


def history_broken_effects(
    family: str, key: str, command: Command[Any], error: CodedError
) -> tuple[NotifyHistoryBroken]:
    """The effect that reports a broken history, once per command that meets it."""
    name = f"broken/{family}/{command.id}"
    return (
        NotifyHistoryBroken(
            key=name, session=key, family=family, code=error.code, message=error.message
        ),
    )


def last_restart(tail: Sequence[StoredMessage]) -> int:
    """The index of the last message that restarts the history; -1 if there is none."""
    places = (place for place, one in enumerate(tail) if restarts_history(one.body))
    return max(places, default=-1)


def first_fact_number(stored: StoredMessage) -> int | None:
    """The number of a message's first fact; ``None`` if no id of its entity is legible."""
    numbers = _fact_numbers(stored.entity).findall(stored.body)
    return min(map(int, numbers), default=None)


def last_fact_number(entity: EntityId, tail: Sequence[StoredMessage]) -> int:
    """The number of an entity's last fact, from messages that may be damaged: the highest legible
    id, plus one for each later message."""
    pattern = _fact_numbers(entity)
    number = 0
    for one in tail:
        found = map(int, pattern.findall(one.body))
        number = max(number + 1, one.quarantined_through, *found)
    return number


def _fact_numbers(entity: EntityId) -> re.Pattern[bytes]:
    return re.compile(_NUMBER % re.escape(f"{entity.family}.{entity.key}").encode())


def chain_end(tail: Sequence[StoredMessage]) -> str:
    """The chain digest that the next message continues."""
    last = tail[-1].chain if tail else ZERO_CHAIN
    return last if re.fullmatch("[0-9a-f]{64}", last) else ZERO_CHAIN


class HistoryFold:
    """The state of one entity while its messages are read."""

    __slots__ = ("_decider", "_packed", "_state", "messages")

    def __init__(self, decider: Decider, key: str) -> None:
        self._decider, self._state = decider, decider.initial(key)
        self.messages = 0
        """How many it has folded."""
        self._packed = b""
        """The state, if it is packed."""

    def add(self, body: bytes) -> CodedError | None:
        """Fold the next message; the error if its facts cannot be decoded or folded."""
        try:
            return self.add_facts(self._decider.codec.decode(body))
        except CodedError as error:
            return error

    def add_facts(self, facts: Iterable[Fact]) -> CodedError | None:
        """Fold the facts of the next message; the error if they cannot be folded."""
        decider = self._decider
        try:
            state = decider.load(decompress(self._packed)) if self._packed else self._state
            for fact in facts:
                state = decider.evolve(state, fact)
        except CodedError as error:
            return error
        except Exception as error:  # A fold is total; a bug in it makes the message unusable.
            return Failed("NODE_FAILED", f"its facts cannot be folded: {error!r}")
        self._state, self._packed = state, b""
        self.messages += 1
        return None

    def pack(self) -> None:
        """Use a tenth of the memory until the next message; a session's state has some 25 kB."""
        with suppress(OverflowError, TypeError, msgspec.MsgspecError):  # No snapshot could have it.
            self._packed = compress(self._decider.dump(self._state), _FASTEST)
            self._state = None
