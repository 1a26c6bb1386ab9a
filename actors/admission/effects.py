"""The effects of admission: replies about inputs that never ran, and about runs that ended earlier.

The turn sends the result of its own run to the clients that its last fact names.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from rookery.actors.admission.evolve import ENDED_STATES
from rookery.actors.admission.state import Admission, EndedInput
from rookery.actors.kernel import Effect
from rookery.actors.messages import ReportChildEnded, ReportItemHandled
from rookery.schemas.agents import ParentRun
from rookery.schemas.facts import session as facts
from rookery.schemas.replies import RunReceipt
from rookery.schemas.run import ErrorObject, RunResult, RunStatus

__all__ = ["EFFECT_TYPES", "SendPastResult", "SendReceipt", "effects"]

EFFECT_TYPES: Final = frozenset({facts.ReplyRequested, *ENDED_STATES})
"""The facts that ``effects`` knows."""


class SendReceipt(Effect, frozen=True, kw_only=True):
    """Send the receipt of an input that never ran. A repetition is harmless."""

    reply_to: str
    receipt: RunReceipt


class SendPastResult(Effect, frozen=True, kw_only=True):
    """Send a run's result, which is stored in the turn's last fact."""

    reply_to: str
    session: str
    run_id: str
    at_sequence: int


def effects(state: Admission, fact: facts.SessionFact) -> tuple[Effect, ...]:
    """The effects of ``fact``; ``state`` is the one after it, or a later one."""
    if type(fact) not in EFFECT_TYPES or fact.run is UNSET:
        return ()
    ended = state.ended.input_of_run(str(fact.run))
    if ended is None:
        return ()
    subjects = ended.reply_to
    if ended.parent is not UNSET and not ended.at_sequence:
        return (_report_unstarted_child(state, ended, ended.parent),)
    if ended.item_id and not ended.at_sequence and not isinstance(fact, facts.ReplyRequested):
        return (_report_unstarted(state, ended),)
    if isinstance(fact, facts.ReplyRequested):
        subjects = (fact.reply_to,)
    elif isinstance(fact, facts.RunCommitted | facts.RunFailed) and fact.unanswered is not UNSET:
        subjects = fact.unanswered
    return tuple(_reply_effect(state, ended, reply_to) for reply_to in subjects)


def _report_unstarted(state: Admission, ended: EndedInput) -> Effect:
    """The result of a run that handles an item and has none of its own."""
    error = ended.error or ErrorObject(code="CANCELLED", message=f"the run was {ended.state}")
    return ReportItemHandled(
        key=f"item/{ended.run_id}",
        session=state.meta.id,
        run_id=ended.run_id,
        item_id=ended.item_id,
        result=RunResult.failed(RunStatus.CANCELLED, error),
    )


def _report_unstarted_child(state: Admission, ended: EndedInput, parent: ParentRun) -> Effect:
    """The end of a child whose run has no result of its own."""
    error = ended.error or ErrorObject(code="CANCELLED", message=f"the run was {ended.state}")
    return ReportChildEnded(
        key=f"child/{ended.run_id}",
        session=state.meta.id,
        run_id=ended.run_id,
        parent=parent,
        result=RunResult.failed(RunStatus.CANCELLED, error),
    )


def _reply_effect(state: Admission, ended: EndedInput, reply_to: str) -> Effect:
    key = f"{ended.run_id}/{reply_to}"
    if not ended.at_sequence:
        return SendReceipt(key=key, reply_to=reply_to, receipt=state.receipt(ended))
    return SendPastResult(
        key=key,
        reply_to=reply_to,
        session=state.meta.id,
        run_id=ended.run_id,
        at_sequence=ended.at_sequence,
    )
