"""Entities whose history cannot be folded: how one finds out, and how they begin anew.

A fact says so on record (``HistoryRestart``). What stands before it stays as it is, broken where it
is broken, and continues into the digest chain; nobody folds it any more. When that is right is not
known here: whoever asks for it must know that nothing of what is left behind is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from rookery.actors.kernel.decider import Effect
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import restarts_history
from rookery.schemas.digest import ZERO_CHAIN
from rookery.schemas.envelope import Command, EntityId, HistoryRestart
from rookery.schemas.errors import CodedError
from rookery.schemas.ids import reaction_id

__all__ = [
    "HISTORY_COMMANDS",
    "OTHER_VERSIONS",
    "HistoryCheck",
    "HistoryView",
    "NotifyHistoryBroken",
    "RestartHistory",
    "Restartable",
    "chain_end",
    "history_broken_effects",
    "last_fact_number",
    "last_restart",
]

OTHER_VERSIONS: Final = frozenset(
    {"FACT_UNKNOWN", "FACT_VERSION_UNSUPPORTED", "SEALED_UNSUPPORTED"}
)
"""What cannot be read here, another version may be able to read."""
_NUMBER: Final = rb'"id":"%b\.([0-9]{1,18})"'


class NotifyHistoryBroken(Effect, frozen=True, kw_only=True):
    """Tell those who wait for the family that nothing will come of it any more."""

    session: str
    family: str
    code: str
    message: str


class HistoryCheck(msgspec.Struct, frozen=True):
    """Ask an entity whether its history can be folded, as it stands by now; leaves no fact."""


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    code: str = ""
    """Why it cannot be folded; empty if it can."""
    message: str = ""


class RestartHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Begin an entity anew if its history cannot be folded; else nothing follows."""

    generation: int
    handled: dict[str, int] = {}
    """How many facts of other families stand: to none of them is to be reacted any more."""

    def causes(self, entity: EntityId) -> tuple[str, ...]:
        """What the fact says it is a reaction to, so that it is no cause of another one."""
        key, family = entity.key, entity.family
        return tuple(
            reaction_id(f"{other}.{key}.{number}", family)
            for other, number in self.handled.items()
            if number
        )


HISTORY_COMMANDS: Final = frozenset((HistoryCheck, RestartHistory))
"""What the kernel answers itself, of any entity."""


@runtime_checkable
class Restartable(Protocol):
    """A concern whose entities can begin anew."""

    restart_fact: type[HistoryRestart]
    """The fact that says so; folded, it is as if nothing stood before."""

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """Whom to tell that ``command`` came to an entity that cannot be folded."""


def history_broken_effects(
    family: str, key: str, command: Command[Any], error: CodedError
) -> tuple[NotifyHistoryBroken]:
    """Each time it is noticed anew."""
    name = f"broken/{family}/{command.id}"
    return (
        NotifyHistoryBroken(
            key=name, session=key, family=family, code=error.code, message=error.message
        ),
    )


def last_restart(tail: Sequence[StoredMessage]) -> int:
    """The place of the last message that begins a history anew; -1 if there is none."""
    places = (place for place, one in enumerate(tail) if restarts_history(one.body))
    return max(places, default=-1)


def last_fact_number(entity: EntityId, tail: Sequence[StoredMessage]) -> int:
    """How many facts an entity has by its messages, damaged as they may be: the ids that can still
    be seen, and one for every message after those."""
    pattern = re.compile(_NUMBER % re.escape(f"{entity.family}.{entity.key}").encode())
    number = 0
    for one in tail:
        number = max([number + 1, *map(int, pattern.findall(one.body))])
    return number


def chain_end(tail: Sequence[StoredMessage]) -> str:
    """What a further message continues."""
    last = tail[-1].chain if tail else ZERO_CHAIN
    return last if re.fullmatch("[0-9a-f]{64}", last) else ZERO_CHAIN
