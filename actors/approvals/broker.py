"""The broker: dispatches one approval request and journals each step.

The intent is journaled before a dispatcher sees the request, and the result before a call is
released. If the result cannot be journaled, a recovery record says that the outcome is unknown, and
the call stays blocked. Timeouts and grants belong to its callers.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, Protocol

from rookery.actors.approvals.dispatchers.protocol import (
    Cancelled,
    Decision,
    Dispatcher,
    DispatchResult,
    Pending,
    Terms,
    TimedOut,
    Unavailable,
)
from rookery.schemas.approvals.dispatch import (
    approval_dispatch_intent_record,
    approval_dispatch_result_record,
)
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalLifecycleStatus,
    ApprovalRequest,
    ApprovalTerminalStatus,
    Denied,
    denied,
)
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.lifecycle import EffectTerminalStatus, PendingSideEffect, RecoveryMarker
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, MissingDependency
from rookery.schemas.seed.records import JournalRecord, JournalRecordBase
from rookery.schemas.seed.refs import SourceKind

__all__ = [
    "ApprovalBroker",
    "DispatchJournal",
    "Ruling",
    "intent_record",
    "record_base",
    "result_record",
    "ruling_of",
    "ruling_without_dispatcher",
]

log = logging.getLogger(__name__)

DISPATCHER_ERROR: Final = "approval.dispatcher_error"
_APPROVED: Final = {
    ApprovalDecisionKind.APPROVED: ApprovalTerminalStatus.APPROVED,
    ApprovalDecisionKind.APPROVED_FOR_SESSION: ApprovalTerminalStatus.APPROVED_FOR_SESSION,
}


class DispatchJournal(Protocol):
    """Port: the journal of the run whose call waits for the approval."""

    async def append(
        self, record: JournalRecord, outcome: ApprovalBrokerOutcome | None = None
    ) -> str:
        """Journal a record and return its cursor. Any exception means that the record is not
        committed.

        ``outcome`` comes with a result: its consequences are committed in the same message.
        """


class Ruling(NamedTuple):
    """The outcome of a dispatch, and the status of its effect."""

    outcome: ApprovalBrokerOutcome
    effect: EffectTerminalStatus


# --- the table ------------------------------------------------------------------------------------


def ruling_of(
    request: ApprovalRequest, dispatched: Decision | TimedOut | Cancelled | Unavailable
) -> Ruling:
    """The ruling for each way a dispatch can end."""
    match dispatched:
        case Decision(decision=decision):
            return _ruling_of_decision(request, decision)
        case TimedOut():
            status, effect = ApprovalTerminalStatus.TIMED_OUT, EffectTerminalStatus.TIMED_OUT
            return _undecided(request, status, "approval.timeout", effect)
        case Cancelled():
            status, effect = ApprovalTerminalStatus.CANCELLED, EffectTerminalStatus.CANCELLED
            return _undecided(request, status, "approval.cancelled", effect)
        case Unavailable(reason_code=reason_code):
            status = ApprovalTerminalStatus.DISPATCHER_UNAVAILABLE
            return _undecided(request, status, reason_code, EffectTerminalStatus.FAILED)


def ruling_without_dispatcher(request: ApprovalRequest) -> Ruling:
    """A denial: the realm has no dispatcher."""
    reason_code = MissingDependency.APPROVAL_DISPATCHER.reason_code
    status = ApprovalTerminalStatus.DENIED
    return _undecided(request, status, reason_code, EffectTerminalStatus.FAILED)


def _ruling_of_decision(request: ApprovalRequest, decision: ApprovalDecision) -> Ruling:
    """Deny a decision of the requester itself, and one the request does not permit."""
    if request.source.kind == SourceKind.EXTENSION and decision.actor_ref == request.source:
        return _denied(request, denied("approval.extension_self_response"))
    if not request.allows_decision(decision.kind):
        return _denied(request, denied("approval.decision_not_allowed"))
    if isinstance(decision, Denied):
        return _denied(request, decision)
    status = _APPROVED[decision.kind]
    outcome = ApprovalBrokerOutcome(
        approval_request_id=request.approval_request_id,
        status=status,
        decision=decision,
        reason_code=f"approval.{status}",
    )
    return Ruling(outcome, EffectTerminalStatus.COMPLETED)


def _denied(request: ApprovalRequest, decision: Denied) -> Ruling:
    outcome = ApprovalBrokerOutcome(
        approval_request_id=request.approval_request_id,
        status=ApprovalTerminalStatus.DENIED,
        decision=decision,
        reason_code=decision.reason_code,
    )
    return Ruling(outcome, EffectTerminalStatus.DENIED_BEFORE_EXECUTION)


def _undecided(
    request: ApprovalRequest,
    status: ApprovalTerminalStatus,
    reason_code: str,
    effect: EffectTerminalStatus,
) -> Ruling:
    outcome = ApprovalBrokerOutcome(
        approval_request_id=request.approval_request_id,
        status=status,
        decision=None,
        reason_code=reason_code,
    )
    return Ruling(outcome, effect)


# --- records --------------------------------------------------------------------------------------


def record_base(request: ApprovalRequest, seq: int, what: str) -> JournalRecordBase:
    """The common fields of every record about a request."""
    return JournalRecordBase(
        journal_seq=seq,
        record_id=f"journal.record.approval.{request.approval_request_id.as_str()}.{what}",
        run_id=request.run_id,
        session_id=request.session_id,
        agent_id=request.agent_id,
        turn_id=request.turn_id,
        source=request.source,
        destination=request.destination,
        timestamp_millis=request.created_at_millis + seq,
        runtime_package_fingerprint=request.runtime_package_fingerprint.as_str(),
    )


def intent_record(request: ApprovalRequest, seq: int) -> JournalRecord:
    """The record written before the dispatch."""
    return approval_dispatch_intent_record(record_base(request, seq, "intent"), request)


def result_record(request: ApprovalRequest, seq: int, ruling: Ruling) -> JournalRecord:
    """The record of how the dispatch ended."""
    return approval_dispatch_result_record(
        record_base(request, seq, "result"),
        request,
        ApprovalLifecycleStatus(ruling.outcome.status.value),
        ruling.effect,
        f"approval {ruling.outcome.status.value}",
    )


def _recovery_record(request: ApprovalRequest, seq: int) -> JournalRecord:
    reason = "the result of an approval dispatch could not be put on record"
    pending = PendingSideEffect(
        effect_id=request.approval_dispatch_effect_id,
        intent_record_id=record_base(request, seq, "intent").record_id,
        unsafe_pending_reason=reason,
    )
    marker = RecoveryMarker(
        unsafe_pending=(pending,), recovery_reason=reason, policy_refs=request.policy_refs
    )
    return JournalRecord.recovery(record_base(request, seq, "recovery"), marker)


# --- asking ---------------------------------------------------------------------------------------


class ApprovalBroker:
    """Requests approvals of one run."""

    def __init__(self, journal: DispatchJournal, *, first_seq: int = 1) -> None:
        """Number the records from ``first_seq``."""
        self._journal, self._next_seq = journal, first_seq
        self._cancelled: set[str] = set()

    def cancel_before_dispatch(self, request_id: str) -> None:
        """Cancel the request of this id if it was not dispatched yet."""
        self._cancelled.add(request_id)

    async def request_approval(
        self, request: ApprovalRequest, dispatcher: Dispatcher | None, terms: Terms
    ) -> ApprovalBrokerOutcome | Pending:
        """Dispatch the request and return its outcome. Two statuses release the call. Raises
        ``AgentError`` if a record is missing."""
        request.validate()
        await self._append_before_dispatch(request, intent_record(request, self._seq()))
        request_id = request.approval_request_id.as_str()
        if request_id in self._cancelled:
            self._cancelled.remove(request_id)
            return await self._end_before_dispatch(request, ruling_of(request, Cancelled()))
        if dispatcher is None:
            return await self._end_before_dispatch(request, ruling_without_dispatcher(request))
        dispatched = await _dispatch(request, dispatcher, terms)
        if isinstance(dispatched, Pending):
            return dispatched
        return await self._end_after_dispatch(request, ruling_of(request, dispatched))

    def _seq(self) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return seq

    async def _end_before_dispatch(
        self, request: ApprovalRequest, ruling: Ruling
    ) -> ApprovalBrokerOutcome:
        record = result_record(request, self._seq(), ruling)
        await self._append_before_dispatch(request, record, ruling.outcome)
        return ruling.outcome

    async def _append_before_dispatch(
        self,
        request: ApprovalRequest,
        record: JournalRecord,
        outcome: ApprovalBrokerOutcome | None = None,
    ) -> None:
        """Journal a record while no dispatcher has seen the request: a failure leaves no trace."""
        try:
            await self._journal.append(record, outcome)
        except Exception as error:
            raise _journal_failure(request, error) from error

    async def _end_after_dispatch(
        self, request: ApprovalRequest, ruling: Ruling
    ) -> ApprovalBrokerOutcome:
        """Journal the result of a dispatch; if that fails, journal a recovery record."""
        seq = self._seq()
        try:
            await self._journal.append(result_record(request, seq, ruling), ruling.outcome)
        except Exception as error:
            try:
                await self._journal.append(_recovery_record(request, seq))
            except Exception as second:
                raise _repair_needed(request, error) from second
            raise _repair_needed(request, error) from error
        return ruling.outcome


async def _dispatch(
    request: ApprovalRequest, dispatcher: Dispatcher, terms: Terms
) -> DispatchResult:
    try:
        return await dispatcher.dispatch(request, terms)
    except Exception:
        log.exception("dispatcher failed", extra={"dispatcher": dispatcher.name})
        return Unavailable(DISPATCHER_ERROR)


def _journal_failure(request: ApprovalRequest, error: Exception) -> AgentError:
    return AgentError.new(
        AgentErrorKind.JOURNAL_FAILURE,
        RetryClassification.REPAIR_NEEDED,
        f"the approval was not journaled: {error}",
    ).with_subject(request.subject_ref())


def _repair_needed(request: ApprovalRequest, error: Exception) -> AgentError:
    return AgentError.new(
        AgentErrorKind.RECOVERY_REPAIR_NEEDED,
        RetryClassification.REPAIR_NEEDED,
        f"the result of the approval was not journaled: {error}",
    ).with_subject(request.subject_ref())
