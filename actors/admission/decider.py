"""The decider of the family ``session``.

A command finds its rule in ``commands``. The reply to a run is sent at its end; every other command
is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.admission.commands import (
    AdmissionQuotas,
    accept,
    accept_child,
    accept_item,
    cancel,
    cancel_handler,
    change_limits,
    classes_of,
    create,
    end_lost_run,
    end_run,
    handle_input,
    open_from_snapshot,
    unknown_session,
    with_session_id,
)
from rookery.actors.admission.effects import EFFECT_TYPES, effects
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.admission.session_claims import ClaimRegistry, SessionClaim
from rookery.actors.admission.state import (
    STATE_SCHEMA,
    Admission,
    EndedInput,
    decode_state,
    encode_state,
    observe_turn,
)
from rookery.actors.kernel import Decider, Effect, ReadScope
from rookery.actors.messages import (
    CancelHandler,
    HandlerCancelled,
    RecordRunEnd,
    ReportBrokenHistory,
    RunEndRecorded,
)
from rookery.actors.protection.checks import check_rights
from rookery.schemas.agent_tools import RunChild
from rookery.schemas.agents import ImmediateMessage, MessageRole
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import (
    COMMANDS,
    AppendMessage,
    Cancel,
    ChangeLimits,
    CreateSession,
    HandleInput,
    SessionQuery,
    SetContext,
)
from rookery.schemas.envelope import Command, Fact, FactClasses
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import session as facts
from rookery.schemas.facts.peer import ItemAssigned
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.facts.turn import Cancelled, Completed, Failed, TurnFact
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import RunRequest, SessionMeta, check_run_limits

__all__ = ["AdmissionDecider"]


def _require_known(
    state: Admission, command: Command[Any], *, now_ms: int
) -> Sequence[facts.SessionFact]:
    """A read leaves no fact; a session without facts is unknown."""
    del now_ms
    if not state.meta.created_at:
        raise unknown_session(command.key)
    return ()


def _leave_to_reaction(
    state: Admission, command: Command[Any], *, now_ms: int
) -> Sequence[facts.SessionFact]:
    """The facts of the turn, which are read before this command, end the run."""
    del state, command, now_ms
    return ()


_RULES: dict[type, Callable[..., Sequence[facts.SessionFact]]] = {
    CreateSession: create,
    ChangeLimits: change_limits,
    Cancel: cancel,
    Completed: end_run,
    Failed: end_run,
    Cancelled: end_run,
    SnapshotRestored: open_from_snapshot,
    ReportBrokenHistory: end_lost_run,
    RecordRunEnd: _leave_to_reaction,
    SessionQuery: _require_known,
    ItemAssigned: accept_item,
    RunChild: accept_child,
    CancelHandler: cancel_handler,
}
"""Rules that need only the session's state."""

_READS_FIRST = frozenset(
    (Cancel, RunChild, RecordRunEnd, HandleInput, ReportBrokenHistory, SessionQuery)
)
"""Commands that may depend on facts not yet delivered here."""
VERBS = (
    "run",
    "append",
    "context",
    "child",
    "create",
    "limits",
    "cancel",
    "admission",
    "session",
)
TIMER_IDS = "timer/"
"""The id of a timer's command begins with this; that of a client's cannot."""
FENCED = frozenset({facts.Retired, facts.Destroyed, facts.Reset})
"""Facts that close a session; committed only while no family of it has unseen facts."""
END_HOLD_S = 0.02
"""Lists and quotas of other nodes see the end of a run this much later."""


class AdmissionDecider(Decider):
    """The rules of the family ``session``."""

    family = "session"
    schema = STATE_SCHEMA
    verbs: Mapping[str, type[msgspec.Struct]] = {verb: COMMANDS[verb] for verb in VERBS}
    codec: FactCodec[facts.SessionFact] = FactCodec(facts.SESSION_FACTS)
    effect_types = EFFECT_TYPES
    handles_duplicates = True
    stores_large_bodies = True
    restart_fact = facts.HistoryRestarted
    reaction_types = frozenset({Completed, Failed, Cancelled, SnapshotRestored, ItemAssigned})

    def __init__(
        self,
        *,
        queued_max: int,
        in_flight_max: int,
        realm_load: InFlightCounter,
        claims: ClaimRegistry | None = None,
        driven: bool = False,
        judge: Callable[[RunRequest], None] = check_run_limits,
    ) -> None:
        """``claims``: those of the runtime, if it has several deciders. ``driven``: this node
        executes the runs of its sessions; without it, drivers outside do, and a run ends with its
        turn or by an input to the session. ``judge`` raises ``Refused`` for a request that no
        session could execute."""
        self._executes_runs, self._validate = driven, judge
        self.reacts_to = frozenset({"turn", "sandbox", "peer"}) if driven else frozenset({"turn"})
        self.observes = frozenset() if driven else frozenset({"turn"})
        self._queued_max, self._in_flight_max = queued_max, in_flight_max
        self._in_flight = realm_load
        self._claims = ClaimRegistry() if claims is None else claims
        self._claimed: dict[str, SessionClaim] = {}
        """The claims of the sessions in memory; within one runtime no other holder can act as
        them."""

    def initial(self, key: str) -> Admission:
        return Admission(meta=SessionMeta(id=key))

    def redirects_to(self, command: Command[Any]) -> str:
        """Redirect a request with ``validate_only`` to the query ``validate``."""
        body = command.body
        asks = isinstance(body, RunRequest) and body.validate_only
        return "validate" if asks and self._executes_runs else ""

    def read_scope(self, state: Admission, command: Command[Any]) -> ReadScope | None:
        """Read other families' facts if the current run may have ended, or if a snapshot may have
        opened the session. A run id unknown here requires a full read."""
        if not self._executes_runs:
            by_hand = isinstance(command.body, HandleInput) and state.current is not None
            return ReadScope.OTHERS if by_hand else None
        if type(command.body) not in _READS_FIRST:
            return None
        found: object = None
        match command.body:
            case Cancel(run_id=run_id):
                found = state.input_of_run(run_id)
                if found is None:
                    return ReadScope.ALL
            case RecordRunEnd(run_id=run_id):
                found = state.input_of_run(run_id)
            case HandleInput(input="Destroy") | ReportBrokenHistory() | RunChild(withdrawn=True):
                found = state.current
            case SessionQuery() if not state.is_open:
                return ReadScope.OTHERS
        return ReadScope.OTHERS if found is not None and found is state.current else None

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """None: the client gets the error, and no other entity waits for a session."""
        del key, command, error
        return ()

    def decide(
        self, state: Admission, command: Command[Any], *, now_ms: int
    ) -> Sequence[facts.SessionFact]:
        if not isinstance(command.body, SessionQuery) and command.key not in self._claimed:
            self._claimed[command.key] = self._claims.try_acquire(command.key)
        match command.body:
            case RunRequest(validate_only=True):
                raise Refused(
                    "UNSUPPORTED_FEATURE",
                    "this node executes no runs and so validates none",
                    hint="send it to a node with driver = sandbox",
                )
            case RunRequest() as request:
                self._check(
                    state, with_session_id(command.key, request), repeated=command.is_duplicate
                )
                return self._accept(state, command, now_ms)
            case AppendMessage() if command.id.startswith(TIMER_IDS) and not state.is_open:
                return ()  # A detached child has ended later than the session of its parent.
            case AppendMessage() | SetContext() as body:
                run = replace(command, body=self._message(body))
                return self._accept(state, run, now_ms)
            case HandleInput():
                return handle_input(state, command, now_ms=now_ms, driven=self._executes_runs)
            case Fact() as fact if type(fact) not in self.reaction_types:
                return ()  # It is observed.
            case body:
                return _RULES[type(body)](state, command, now_ms=now_ms)

    def _accept(
        self, state: Admission, command: Command[RunRequest], now_ms: int
    ) -> Sequence[facts.SessionFact]:
        load = self._in_flight.load(command.key, state.pending_count, self._in_flight_max)
        quotas = AdmissionQuotas(self._queued_max, load.limit, load.in_flight, load.counted)
        return accept(state, command, now_ms=now_ms, quotas=quotas)

    def _message(self, body: AppendMessage | SetContext) -> RunRequest:
        """A message for the conversation as the input of a run without a model."""
        if not self._executes_runs:
            raise Refused("UNSUPPORTED_FEATURE", "this node has no conversations")
        if isinstance(body, SetContext):
            immediate = ImmediateMessage(role=MessageRole.SYSTEM, context_key=body.context_key)
        else:
            immediate = ImmediateMessage(role=MessageRole(body.role))
        return RunRequest(prompt=body.text, immediate=immediate)

    def _check(self, state: Admission, request: RunRequest, *, repeated: bool) -> None:
        """Validate a request. A duplicate was validated the first time."""
        if repeated:
            return
        self._validate(request)
        if request.rights is not UNSET:
            check_rights(request.rights)
        if self._executes_runs and state.is_open and not request.has_prompt:
            state.meta.check_language(request.language)

    def classes(
        self, state: Admission, command: Command[Any], facts: Sequence[Fact]
    ) -> FactClasses:
        del command
        return classes_of(state, facts)

    def evolve(self, state: Admission, fact: facts.SessionFact) -> Admission:
        return evolve(state, fact)

    def observe(self, state: Admission, fact: TurnFact) -> Admission:
        return replace(state, turn=observe_turn(state.turn, fact))

    def reply(
        self, state: Admission, command: Command[Any], decided: Sequence[Fact]
    ) -> msgspec.Struct | None:
        """The receipt of a run follows at its end; a duplicate of an unstarted run gets it at
        once."""
        del decided
        match command.body:
            case RecordRunEnd() | ReportBrokenHistory():
                return RunEndRecorded()
            case RunRequest() | AppendMessage() | SetContext():
                found = state.input_of_command(command.id)
                if not isinstance(found, EndedInput) or found.at_sequence:
                    return None
                receipt = state.receipt(found)
                return RunAnswer.of_unstarted(receipt) if self._executes_runs else receipt
            case CancelHandler():
                return HandlerCancelled()
            case Cancel(run_id=run_id):
                found = state.input_of_run(run_id)
                return None if found is None else state.receipt(found)
            case _:
                return state.view()

    def must_be_fenced(self, decided: Sequence[Fact]) -> bool:
        return not FENCED.isdisjoint(map(type, decided))

    def hold_s(self, state: Admission, decided: Sequence[Fact]) -> float:
        """The end of a run that no other one follows waits for the session's next command, if its
        turn's last fact is on record: that is the end for every reader."""
        del state
        (first, *others) = decided
        if others or not isinstance(first, facts.RunCommitted | facts.RunFailed):
            return 0.0
        return 0.0 if first.ended_at_sequence is UNSET else END_HOLD_S

    def effects(self, state: Admission, fact: facts.SessionFact) -> Sequence[Effect]:
        return effects(state, fact)

    def on_state(self, key: str, state: Admission | None) -> None:
        if state is None:
            self._in_flight.drop_local(key)
            if (claim := self._claimed.pop(key, None)) is not None:
                claim.close()
        else:
            self._in_flight.set_local(key, state.pending_count)

    def dump(self, state: Admission) -> bytes:
        return encode_state(state)

    def load(self, data: bytes) -> Admission:
        return decode_state(data)
