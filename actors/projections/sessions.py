"""The sessions of a realm, folded from their facts by admission's own rules.

A session with a fact that cannot be read stays as it was before and is known as unreadable; it
hides no other. Pure, but that the realm's load is told of what sessions owe.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.in_flight import RealmLoad
from rookery.actors.admission.state import (
    STATE_SCHEMA,
    Admission,
    EndedInputs,
    OwedInput,
    dump,
    load,
)
from rookery.actors.kernel.machines.session_host import Host
from rookery.actors.projections.checkpoint import form_of
from rookery.bus.ports import Stored
from rookery.schemas.codec import FactCodec, restarts_history
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.session import SESSION_FACTS, SessionFact
from rookery.schemas.run import SessionMeta

__all__ = ["SessionTable"]

log = logging.getLogger(__name__)

FAMILY: Final = "session"
FOLDS: Final = 1
PART_SESSIONS: Final = 256

_CODEC: Final[FactCodec[SessionFact]] = FactCodec(SESSION_FACTS)


class SessionPart(msgspec.Struct, array_like=True):
    """Of a table; the keys of unreadable sessions stand in the first one."""

    states: list[bytes]
    unreadable: list[str]


_decoder = msgspec.msgpack.Decoder(SessionPart)


class SessionTable:
    """In the order in which they were first heard of."""

    name = "sessions"
    form = form_of(
        (FOLDS, STATE_SCHEMA, Admission.__struct_fields__),
        SessionPart,
        SessionMeta,
        Host,
        OwedInput,
    )

    def __init__(self, realm_load: RealmLoad | None = None) -> None:
        self._load = realm_load
        self.states: dict[str, Admission] = {}
        self.unreadable: set[str] = set()

    def take(self, stored: Stored) -> None:
        """Fold a message of the journal."""
        key = stored.entity.key
        if stored.entity.family != FAMILY:
            return
        if key in self.unreadable:
            if not restarts_history(stored.body):
                return
            self.unreadable.discard(key)
        state = self.states.get(key) or Admission(meta=SessionMeta(id=key))
        try:
            for fact in _CODEC.decode(stored.body):
                state = evolve(state, fact)
        except CodedError as error:
            log.error("a session is unreadable", extra={"session": key, "code": error.code})
            self.unreadable.add(key)
        if len(state.ended):  # How inputs ended is for admission to remember.
            state = msgspec.structs.replace(state, ended=EndedInputs())
        self._note(key, state)

    def parts(self) -> Iterator[bytes]:
        """What there is, for a checkpoint."""
        yield _packed(SessionPart([], sorted(self.unreadable)))
        states = map(dump, self.states.values())
        while some := list(islice(states, PART_SESSIONS)):
            yield _packed(SessionPart(some, []))

    def anew(self) -> SessionTable:
        return SessionTable(self._load)

    def adopt(self, part: bytes) -> None:
        """Take over a part of a checkpoint."""
        kept = _decoder.decode(zlib.decompress(part))
        self.unreadable |= set(kept.unreadable)
        for data in kept.states:
            state = load(data)
            self._note(state.meta.id, state)

    def _note(self, key: str, state: Admission) -> None:
        self.states[key] = state
        if self._load is not None:
            self._load.note_seen(key, state.owed)


def _packed(part: SessionPart) -> bytes:
    """One session is spelled like the other: a tenth is left of them, for half a microsecond each
    (measured)."""
    return zlib.compress(msgspec.msgpack.encode(part), 1)
