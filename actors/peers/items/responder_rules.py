"""The responder of a session: the program that runs once for each item. Pure.

The drain says whether items are handed to it. A run at a time handles an item; its result is the
response, unless its program has responded itself. A result ``{"input_required": ...}`` is progress,
and leaves the request open: the run that handles a further message in reply to it may end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from rookery.actors.kernel import FactBuilder
from rookery.actors.kernel.machines import RETIRED, STOPPED
from rookery.actors.messages import HandlerEnded
from rookery.actors.peers.drain_machine import DrainPhase
from rookery.actors.peers.items.terms import check_responder
from rookery.actors.peers.outbox import OutboxRules
from rookery.actors.peers.state import SessionPeers
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerResponseProgressProjectionPhase,
    ResponseStatus,
)
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import SendEnvelope
from rookery.schemas.peers.items import (
    INPUT_REQUIRED,
    ItemKind,
    PeerItem,
    ResponderView,
    SetResponder,
)
from rookery.schemas.run import RunResult, RunStatus

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = [
    "end_handler",
    "end_with_session",
    "on_drain_due",
    "responder_view",
    "set_responder",
]

_OVER: Final = (RETIRED, STOPPED)
"""The phases of a session that takes no more inputs."""
FAILURES_MAX: Final = 3
"""So many runs in a row that fail end the drain: a broken program shall not use up the queue."""


def set_responder(
    decider: PeersDecider, state: SessionPeers, session: str, command: SetResponder
) -> Sequence[Fact]:
    """Begin to serve with this program, or stop."""
    builder: FactBuilder[SessionPeers, Any] = FactBuilder(state, decider.evolve)
    responder = command.responder
    if responder is UNSET:
        if state.drain.phase is DrainPhase.RUNNING:
            reason = DrainExitReason.ABORTED if command.now else DrainExitReason.DISMISSED
            builder.facts += _exit(decider, builder.state, session, reason)
        elif state.drain.phase is DrainPhase.EXITED_RESPAWNABLE:
            builder.facts += decider.decide_input(state, session, "drain_exited_clean", {})
        return builder.facts
    check_responder(responder)
    if responder != state.responder or state.failures:
        builder.add(facts.ResponderSet(responder=responder))
    if state.drain.phase is DrainPhase.RUNNING and state.drain.drain_mode is not responder.mode:
        builder.facts += decider.decide_input(builder.state, session, "stop_drain", {})
    if builder.state.drain.phase is not DrainPhase.RUNNING:
        mode = {"mode": responder.mode}
        builder.facts += decider.decide_input(builder.state, session, "spawn_drain", mode)
    return builder.facts


def end_handler(
    decider: PeersDecider,
    state: SessionPeers,
    session: str,
    ended: HandlerEnded,
    rules: OutboxRules,
) -> Sequence[Fact]:
    """The response to an item whose run has ended, unless its program has responded."""
    item = state.serving
    if item is UNSET or item.id != ended.item_id:
        return ()
    builder: FactBuilder[SessionPeers, Any] = FactBuilder(state, decider.evolve)
    error = _error_of(ended.result)
    if corr_id := _answered_by(state, item):
        builder.add(decider.moved(state, session, _response(corr_id, ended.result, rules)))
    has_failed = error is not None and ended.result.status is not RunStatus.CANCELLED
    builder.add(facts.ItemHandled(item_id=item.id, run=ended.run_id, failed=has_failed))
    if builder.state.failures >= FAILURES_MAX and _is_draining(builder.state):
        builder.facts += _exit(decider, builder.state, session, DrainExitReason.FAILED)
    return builder.facts


def end_with_session(decider: PeersDecider, state: SessionPeers, session: str) -> Sequence[Fact]:
    """The end of the drain, once the session is retired and its last item is handled."""
    is_over = state.host.phase in _OVER and state.serving is UNSET
    if not (is_over and _is_draining(state)):
        return ()
    return _exit(decider, state, session, DrainExitReason.SESSION_SHUTDOWN)


def _response(corr_id: str, result: RunResult, rules: OutboxRules) -> Fact:
    error = _error_of(result)
    if error is None and _is_question(result.result):
        sending = SendEnvelope(
            in_reply_to=corr_id,
            status=ResponseStatus.ACCEPTED,
            phase=PeerResponseProgressProjectionPhase.IN_PROGRESS,
            result=result.result,
        )
    elif error is None:
        sending = SendEnvelope(
            in_reply_to=corr_id, status=ResponseStatus.COMPLETED, result=result.result
        )
    else:
        sending = SendEnvelope(in_reply_to=corr_id, status=ResponseStatus.FAILED, error=error)
    try:
        (fact,) = rules.send(sending)
    except Refused as refusal:
        error = PeerFailure(code=refusal.code, message=refusal.message[:2_000])
        failed = SendEnvelope(in_reply_to=corr_id, status=ResponseStatus.FAILED, error=error)
        (fact,) = rules.send(failed)
    return fact


def _answered_by(state: SessionPeers, item: PeerItem) -> str:
    """The open request that the run of an item answers: itself, or the one that it continues."""
    if item.kind is ItemKind.REQUEST:
        return item.id if item.id in state.unanswered else ""
    if item.kind is not ItemKind.MESSAGE or item.in_reply_to is UNSET:
        return ""
    request = state.unanswered.get(item.in_reply_to)
    is_same = request is not None and item.from_ == f"{request.name}@{request.alias}"
    return item.in_reply_to if is_same else ""


def _is_question(result: Any) -> bool:
    """Whether a result asks the requester for more."""
    return isinstance(result, dict) and list(result) == [INPUT_REQUIRED]


def _error_of(result: RunResult) -> PeerFailure | None:
    """The failure of a run as its requester gets it: no traceback, and no file of this machine."""
    if result.status is RunStatus.OK:
        return None
    if result.error is None:
        return PeerFailure(code=result.status.value.upper())
    return PeerFailure(code=result.error.code[:64], message=result.error.message[:2_000])


def _exit(
    decider: PeersDecider, state: SessionPeers, session: str, reason: DrainExitReason
) -> Sequence[Fact]:
    return decider.decide_input(state, session, "notify_drain_exited", {"reason": reason})


def _is_draining(state: SessionPeers) -> bool:
    return state.drain.phase is DrainPhase.RUNNING


# --- the drain's timer ----------------------------------------------------------------------------


def on_drain_due(
    decider: PeersDecider, state: SessionPeers, session: str, due_ms: int
) -> Sequence[Fact]:
    """The drain's timer fired; an older one, or one that was overtaken by an item, does nothing."""
    if state.drain_due_ms != due_ms or state.serving is not UNSET:
        return ()
    if state.drain.phase is DrainPhase.EXITED_RESPAWNABLE:
        mode = {"mode": DrainMode.PERSISTENT_HOST}
        return decider.decide_input(state, session, "spawn_drain", mode)
    if state.drain.phase is DrainPhase.RUNNING:
        return _exit(decider, state, session, DrainExitReason.IDLE_TIMEOUT)
    return ()


def responder_view(state: SessionPeers) -> ResponderView:
    return ResponderView(
        phase=state.drain.phase.value,
        mode=state.drain.drain_mode,
        queued=len(state.queue),
        serves=UNSET if state.serving is UNSET else state.serving.id,
    )
