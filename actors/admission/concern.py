"""Admission as the kernel sees it: the family ``session``, its verbs, its answers.

The rules are ``queue``'s, the folding is ``fold``'s. Here a command finds its rule, and whoever
asked gets a receipt: of a run at its end, of everything else at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.admission.claim import ClaimRegistry, SessionClaim
from rookery.actors.admission.fold import SendAnswer, answers, evolve
from rookery.actors.admission.load import RealmLoad
from rookery.actors.admission.queue import Quotas, accept, cancel, handle
from rookery.actors.admission.state import STATE_SCHEMA, Admission, EndedInput, dump, load
from rookery.actors.kernel.concern import Effect
from rookery.actors.kernel.effects import Performer
from rookery.bus.ports import Answer, Door
from rookery.schemas.codec import FactCodec, encode_json
from rookery.schemas.commands import COMMANDS, Cancel, HandleInput, SessionQuery
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as facts
from rookery.schemas.ids import check_session_id
from rookery.schemas.run import RunRequest, SessionMeta

__all__ = ["AdmissionConcern", "performers"]

VERBS = ("run", "cancel", "admission", "session")
FENCED = (facts.Retired, facts.Destroyed, facts.Reset)
"""What closes a session may only stand if no family of it has moved on unseen."""


class AdmissionConcern:
    """The rules of the family ``session``."""

    family = "session"
    schema = STATE_SCHEMA
    verbs: Mapping[str, type[msgspec.Struct]] = {verb: COMMANDS[verb] for verb in VERBS}
    codec: FactCodec[facts.SessionFact] = FactCodec(facts.SESSION_FACTS)
    reacts_to: frozenset[str] = frozenset()
    observes: frozenset[str] = frozenset()
    has_effects = True
    wants_repeats = True

    def __init__(
        self,
        *,
        queued_max: int,
        in_flight_max: int,
        realm_load: RealmLoad,
        claims: ClaimRegistry,
    ) -> None:
        self._queued_max, self._in_flight_max = queued_max, in_flight_max
        self._load, self._claims = realm_load, claims
        self._claimed: dict[str, SessionClaim] = {}
        """Of the sessions in memory here: inside one runtime nobody else may act as them."""

    def check_key(self, key: str) -> None:
        check_session_id(key)

    def initial(self, key: str) -> Admission:
        return Admission(meta=SessionMeta(id=key))

    def decide(
        self, state: Admission, command: Command[Any], *, now_ms: int
    ) -> Sequence[facts.SessionFact]:
        if not isinstance(command.body, SessionQuery) and command.key not in self._claimed:
            self._claimed[command.key] = self._claims.try_acquire(command.key)
        match command.body:
            case RunRequest(validate_only=True):
                raise Refused("UNSUPPORTED_FEATURE", "validation comes with the sandbox")
            case RunRequest():
                in_flight = self._load.with_session(command.key, state.owed)
                quotas = Quotas(self._queued_max, self._in_flight_max, in_flight)
                return accept(state, command, now_ms=now_ms, quotas=quotas)
            case Cancel():
                return cancel(state, command, now_ms=now_ms)
            case HandleInput():
                return handle(state, command, now_ms=now_ms)
            case SessionQuery() if not state.meta.created_at:
                raise Refused("SESSION_NOT_FOUND", f"there is no session {command.key}")
            case _:
                return []

    def evolve(self, state: Admission, fact: facts.SessionFact) -> Admission:
        return evolve(state, fact)

    def observe(self, state: Admission, fact: Fact) -> Admission:
        del fact
        return state

    def answer(
        self, state: Admission, command: Command[Any], left: Sequence[Fact]
    ) -> msgspec.Struct | None:
        """A run's receipt waits for its end, which for a repeated one may be long past."""
        del left
        match command.body:
            case RunRequest():
                found = state.of_command(command.id)
                return state.receipt(found) if isinstance(found, EndedInput) else None
            case Cancel(run_id=run_id):
                found = state.of_run(run_id)
                return None if found is None else state.receipt(found)
            case _:
                return state.view()

    def fenced(self, decided: Sequence[Fact]) -> bool:
        return any(isinstance(fact, FENCED) for fact in decided)

    def effects(self, state: Admission, fact: facts.SessionFact) -> Sequence[Effect]:
        return answers(state, fact)

    def note(self, key: str, state: Admission | None) -> None:
        if state is None:
            self._load.forget_own(key)
            if (claim := self._claimed.pop(key, None)) is not None:
                claim.close()
        else:
            self._load.note_own(key, state.owed)

    def dump(self, state: Admission) -> bytes:
        return dump(state)

    def load(self, data: bytes) -> Admission:
        return load(data)


def performers(door: Door) -> dict[type[Effect], Performer]:
    """What admission's effects come to."""

    async def send_answer(effect: SendAnswer) -> None:
        door.answer([Answer(effect.reply_to, encode_json(effect.receipt))])

    return {SendAnswer: send_answer}
