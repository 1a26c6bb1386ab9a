"""The effects of admission: replies to the clients of a run."""

from __future__ import annotations

from msgspec import UNSET

from rookery.actors.admission.evolve import ENDED_STATES
from rookery.actors.admission.state import Admission, EndedInput, PendingInput
from rookery.actors.kernel import Effect
from rookery.schemas.facts import session as facts
from rookery.schemas.replies import RunReceipt

__all__ = ["AwaitResult", "SendPastResult", "SendReceipt", "effects"]


class AwaitResult(Effect, frozen=True, kw_only=True):
    """A client at ``reply_to`` waits for the run's end and gets the result without delay."""

    reply_to: str
    session: str
    run_id: str


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
    if isinstance(fact, facts.InputAccepted):
        return _await_effects(state, fact)
    is_repeat = isinstance(fact, facts.ReplyRequested)
    if (type(fact) not in ENDED_STATES and not is_repeat) or fact.run is UNSET:
        return ()
    ended = state.ended.input_of_run(str(fact.run))
    if ended is None:
        return ()
    subjects = (fact.reply_to,) if isinstance(fact, facts.ReplyRequested) else ended.reply_to
    return tuple(_reply_effect(state, ended, reply_to) for reply_to in subjects)


def _await_effects(state: Admission, fact: facts.InputAccepted) -> tuple[Effect, ...]:
    run_id, reply_to = str(fact.run), str(fact.reply_to)
    if not fact.reply_waits or not isinstance(state.input_of_run(run_id), PendingInput):
        return ()
    key = f"{run_id}/{reply_to}/awaited"
    return (AwaitResult(key=key, reply_to=reply_to, session=state.meta.id, run_id=run_id),)


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
