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
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.admission.state import (
    STATE_SCHEMA,
    Admission,
    InputHistory,
    PendingInput,
    decode_state,
    encode_state,
)
from rookery.actors.kernel.machines.session_host import SessionHost
from rookery.actors.projections.checkpoint import version_of
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import FactCodec, restarts_history
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.session import SESSION_FACTS, SessionFact
from rookery.schemas.run import SessionMeta

__all__ = ["SessionProjection"]

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


class SessionProjection:
    """In the order in which they were first heard of."""

    name = "sessions"
    version = version_of(
        (FOLDS, STATE_SCHEMA, Admission.__struct_fields__),
        SessionPart,
        SessionMeta,
        SessionHost,
        PendingInput,
    )

    def __init__(self, realm_load: InFlightCounter | None = None) -> None:
        self._in_flight = realm_load
        self.states: dict[str, Admission] = {}
        self.unreadable: set[str] = set()

    def apply(self, stored: StoredMessage) -> None:
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
            state = msgspec.structs.replace(state, ended=InputHistory())
        self._set_state(key, state)

    def parts(self) -> Iterator[bytes]:
        """What there is, for a checkpoint."""
        yield _compress(SessionPart([], sorted(self.unreadable)))
        states = map(encode_state, self.states.values())
        while some := list(islice(states, PART_SESSIONS)):
            yield _compress(SessionPart(some, []))

    def empty(self) -> SessionProjection:
        return SessionProjection(self._in_flight)

    def restore(self, part: bytes) -> None:
        """Take over a part of a checkpoint."""
        kept = _decoder.decode(zlib.decompress(part))
        self.unreadable |= set(kept.unreadable)
        for data in kept.states:
            state = decode_state(data)
            self._set_state(state.meta.id, state)

    def _set_state(self, key: str, state: Admission) -> None:
        self.states[key] = state
        if self._in_flight is not None:
            self._in_flight.set_seen(key, state.pending_count)


def _compress(part: SessionPart) -> bytes:
    """One session is spelled like the other: a tenth is left of them, for half a microsecond each
    (measured)."""
    return zlib.compress(msgspec.msgpack.encode(part), 1)
