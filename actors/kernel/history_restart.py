"""Entities whose history cannot be folded: how they are detected, and how their history restarts.

A node fails at the first message that it cannot use (``Entity.fold``). ``HistoryFold`` goes on as
if that message were not there, and so finds every such message.

A ``HistoryRestart`` fact is committed. The messages before it stay as they are and remain in the
digest chain; no later version folds them. The sender of the restart must know that nothing in them
is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, runtime_checkable
from zlib import compress, decompress

import msgspec

from rookery.actors.kernel.decider import Decider, Effect
from rookery.bus.ports import StoredMessage
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
    "NotifyHistoryBroken",
    "RestartHistory",
    "Restartable",
    "chain_end",
    "first_fact_number",
    "history_broken_effects",
    "last_fact_number",
    "last_restart",
]

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

    __slots__ = ("_decider", "_packed", "_state")

    def __init__(self, decider: Decider, key: str) -> None:
        self._decider, self._state = decider, decider.initial(key)
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
        return None

    def pack(self) -> None:
        """Use a tenth of the memory until the next message; a session's state has some 25 kB."""
        with suppress(OverflowError, TypeError, msgspec.MsgspecError):  # No snapshot could have it.
            self._packed = compress(self._decider.dump(self._state), _FASTEST)
            self._state = None
