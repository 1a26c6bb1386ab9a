"""The sessions of a realm, folded by admission's rules, and the query ``sessions``.

A session with an unreadable fact keeps its last state and is listed as unreadable. The projection
also counts pending inputs for the realm's load. The query works without a node, too.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import Final

import msgspec

from rookery.actors.admission import InFlightCounter
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import (
    STATE_SCHEMA,
    Admission,
    InputHistory,
    PendingInput,
    decode_state,
    encode_state,
)
from rookery.actors.kernel.machines import HostPhase, SessionHost
from rookery.actors.projections.checkpoint import CheckpointStore, version_of
from rookery.actors.projections.pages import Unpaged
from rookery.actors.projections.projector import Projector
from rookery.bus.ports import Delivery, Filter, Journal, StoredMessage
from rookery.schemas.codec import FactCodec, decode_command, restarts_history
from rookery.schemas.commands import SessionsQuery
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts.session import SESSION_FACTS, SessionFact
from rookery.schemas.replies import SessionList, SessionView
from rookery.schemas.run import SessionMeta

__all__ = ["PHASES", "UNREADABLE", "SessionProjection", "SessionQueryHandler"]

log = logging.getLogger(__name__)

FAMILY: Final = "session"
FOLDS: Final = 1
PART_SESSIONS: Final = 256

_CODEC: Final[FactCodec[SessionFact]] = FactCodec(SESSION_FACTS)


class SessionPart(msgspec.Struct, array_like=True):
    """A part of the projection; its first part has the keys of unreadable sessions."""

    states: list[bytes]
    unreadable: list[str]


_decoder = msgspec.msgpack.Decoder(SessionPart)


class SessionProjection(Unpaged):
    """The state of every session, in the order of their first facts."""

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
            log.error("session not readable", extra={"session": key, "code": error.code})
            self.unreadable.add(key)
        if len(state.ended):  # Only admission needs how inputs ended.
            state = msgspec.structs.replace(state, ended=InputHistory())
        self._set_state(key, state)

    def parts(self) -> Iterator[bytes]:
        """The contents of a checkpoint."""
        yield _compress(SessionPart([], sorted(self.unreadable)))
        states = map(encode_state, self.states.values())
        while some := list(islice(states, PART_SESSIONS)):
            yield _compress(SessionPart(some, []))

    def empty(self) -> SessionProjection:
        return SessionProjection(self._in_flight)

    def restore(self, part: bytes) -> None:
        """Add a part of a checkpoint."""
        stored = _decoder.decode(zlib.decompress(part))
        self.unreadable |= set(stored.unreadable)
        for data in stored.states:
            state = decode_state(data)
            self._set_state(state.meta.id, state)

    def _set_state(self, key: str, state: Admission) -> None:
        self.states[key] = state
        if self._in_flight is not None:
            self._in_flight.set_seen(key, state.pending_count)


def _compress(part: SessionPart) -> bytes:
    """Compress a part to a tenth, at half a microsecond for each session (measured)."""
    return zlib.compress(msgspec.msgpack.encode(part), 1)


UNREADABLE = "Unreadable"
"""The phase shown for a session that cannot be folded to its end."""
PHASES: Final = (*map(str, HostPhase), UNREADABLE)
_POSITION: Final = re.compile(r"([0-9]{1,19})/(.+)", re.DOTALL)
"""Numbers of 64 bits: Python refuses to parse a number of thousands of digits."""


class SessionQueryHandler:
    """Replies to the query ``sessions``. Runs on the bus's loop."""

    def __init__(self, projector: Projector) -> None:
        """``projector`` has a ``SessionProjection``."""
        self._projector = projector

    @classmethod
    def without_node(
        cls, journal: Journal, *, store: CheckpointStore | None = None
    ) -> SessionQueryHandler:
        """A handler that reads the journal, from the checkpoint in ``store`` if there is one."""
        return cls(Projector(journal, [SessionProjection()], Filter(family="session"), store))

    @property
    def _projection(self) -> SessionProjection:
        return self._projector.projection(SessionProjection)

    async def list(self, query: SessionsQuery) -> SessionList:
        """The matching sessions, those used last first."""
        await self._projector.refresh()
        return self._listed(query)

    def _listed(self, query: SessionsQuery) -> SessionList:
        """The matching sessions, as far as the journal was read."""
        if query.phase is not None:
            self.parse_phase(query.phase)
        states = self._projection.states.values()
        found = [state for state in states if self._matches(state, query)]
        rest = found
        if query.before is not None:
            last = _parse_position(query.before)
            rest = [state for state in found if _newest_first(state) > last]
        page = nsmallest(query.limit, rest, key=_newest_first)
        return SessionList(
            sessions=tuple(map(self._view, page)),
            total=len(found),
            next=_position(page[-1]) if len(page) < len(rest) else None,
        )

    def _matches(self, state: Admission, query: SessionsQuery) -> bool:
        meta = state.meta
        return (
            query.phase in (None, self._phase(state))
            and query.language in (None, meta.language)
            and (query.used_since_ms is None or meta.last_used_at >= query.used_since_ms)
        )

    def _phase(self, state: Admission) -> str:
        return UNREADABLE if state.meta.id in self._projection.unreadable else state.host.phase

    def _view(self, state: Admission) -> SessionView:
        return msgspec.structs.replace(state.view(), phase=self._phase(state))

    @staticmethod
    def parse_phase(text: str, normalize: Callable[[str], str] = str) -> str:
        """The phase whose normalized name is ``text``; ``Refused`` if there is none.

        A wrong phase would otherwise match no session, as if there were none.
        """
        for phase in PHASES:
            if normalize(phase) == text:
                return phase
        hint = f"one of {', '.join(PHASES)}"
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is no phase of a session", hint=hint)

    async def handle(self, delivery: Delivery) -> SessionList:
        """The query ``sessions``."""
        await self._projector.refresh_for_query()
        return self._listed(
            decode_command(delivery.body, SessionsQuery, content_type=delivery.content_type)
        )


def _newest_first(state: Admission) -> tuple[int, str]:
    return -state.meta.last_used_at, state.meta.id


def _position(state: Admission) -> str:
    return f"{state.meta.last_used_at}/{state.meta.id}"


def _parse_position(before: str) -> tuple[int, str]:
    match = _POSITION.fullmatch(before)
    if match is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{before[:80]!r} is no position",
            hint="take `next` of the page before",
        )
    return -int(match[1]), match[2]
