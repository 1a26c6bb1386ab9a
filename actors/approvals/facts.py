"""The facts of one approval as they follow from each other: records counted, rows decided.

It knows what a step looks like on record, and no reason for any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from rookery.actors.approvals.broker import Ruling, base_of, intent_record, result_record
from rookery.actors.approvals.lifecycle_machine import APPROVALS
from rookery.actors.approvals.request_record import request_of
from rookery.actors.approvals.state import Asked, SessionApprovals
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.lifecycle import ApprovalAnswer
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalRecord,
    DeniedRecord,
    RequestedRecord,
    RespondedRecord,
    token_of,
)
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval as facts
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind
from rookery.schemas.typed_ids import ApprovalRequestId

__all__ = ["Counted", "Story"]

REASON_MAX: Final = 1_000


class Counted(NamedTuple):
    """An answer that counts."""

    asked: Asked
    decision: ApprovalDecision
    verified: bool
    arrived_ms: int


class Story:
    """Grows by one step after the other."""

    def __init__(self, state: SessionApprovals, session: str, asked: Asked) -> None:
        self.facts: list[Fact] = []
        self.request = request_of(session, asked)
        self._machine, self._asked = state.approvals, asked
        self._seq = state.records if state.run == asked.run else 0

    def tell(self, kind: type[Any], **fields: Any) -> Story:
        """One more fact of this asking."""
        asked = self._asked
        fact = kind(
            approval_id=asked.approval_id,
            operation_id=asked.operation_id,
            run=asked.run,
            generation=asked.generation,
            **fields,
        )
        self.facts.append(fact)
        return self

    def request_it(self, dispatchers: Sequence[str], why: str) -> Story:
        """Somebody's word is asked for; before they are, that they will be is on record."""
        record = self._record("requested", RequestedRecord(request=self.request))
        self.tell(
            facts.Requested, **_call(self._asked), due_ms=self._asked.due_ms, why=why, record=record
        )
        self._row("create_approval", approve_ok=True, deny_ok=True, expiry=True)
        intent = intent_record(self.request, self._next())
        return self.tell(facts.DispatchIntended, dispatchers=tuple(dispatchers), record=intent)

    def allow(self, **by: str) -> Story:
        """Nobody has to be asked."""
        return self.tell(facts.AutoAllowed, **_call(self._asked), **by)

    def answer(self, answer: DecideApproval, counted: Counted) -> Story:
        """Somebody's answer counts."""
        decision = counted.decision
        request_id = ApprovalRequestId(self._asked.approval_id)
        record = self._record(
            "responded", RespondedRecord(request_id=request_id, decision=decision)
        )
        return self.tell(
            facts.Answered,
            decision=token_of(decision),
            actor=answer.actor,
            verified=counted.verified,
            key_id=answer.key_id,
            reason=answer.reason[:REASON_MAX],
            answered_at_ms=answer.answered_at_ms,
            arrived_ms=counted.arrived_ms,
            answer_digest=digest_json(answer),
            record=record,
        )

    def result(self, ruling: Ruling) -> Story:
        """Asking has ended so."""
        record = result_record(self.request, self._next(), ruling)
        return self.tell(facts.DispatchResulted, record=record)

    def recovery(self, record: JournalRecord) -> Story:
        """Nobody knows how asking ended."""
        return self.tell(facts.RecoveryRequired, record=self.numbered(record))

    def numbered(self, record: JournalRecord) -> JournalRecord:
        """A record from outside, as this run counts: several of its calls may be asked about."""
        seq = self._next()
        millis = self.request.created_at_millis + seq
        return msgspec.structs.replace(record, journal_seq=seq, timestamp_millis=millis)

    def close(self, outcome: ApprovalBrokerOutcome, reason: str = "") -> Story:
        """It came to nothing. The inbox's view has no word for what nobody decided but that its
        time is over."""
        denied = DeniedRecord(
            request_id=ApprovalRequestId(self._asked.approval_id), reason_code=outcome.reason_code
        )
        self.tell(
            facts.Closed,
            status=outcome.status,
            reason_code=outcome.reason_code,
            reason=reason[:REASON_MAX],
            record=self._record("denied", denied),
        )
        if outcome.decision is None:
            return self._row("observe_approval_expiry", expired=True)
        return self._row("decide_approval", decision=ApprovalAnswer.DENY)

    def grant(self, expires_at_ms: int, session_grant_id: str = "") -> Story:
        """The call may be made, once, as it was shown."""
        return self.tell(
            facts.GrantIssued,
            grant_id=f"grant.{self._asked.approval_id}",
            request_digest=self._asked.request_digest,
            expires_at_ms=expires_at_ms,
            session_grant_id=session_grant_id,
        )

    def approve(self) -> Story:
        return self._row("decide_approval", decision=ApprovalAnswer.APPROVE)

    def _row(self, on: str, **params: Any) -> Story:
        """A row of approval_lifecycle, which takes every input."""
        params["approval_id"] = self._asked.approval_id
        fact = APPROVALS.decide(self._machine, on, APPROVALS.draft(on, params))
        self._machine = APPROVALS.evolve(self._machine, fact)
        force_setattr(fact, "run", self._asked.run)
        force_setattr(fact, "generation", self._asked.generation)
        self.facts.append(fact)
        return self

    def _record(
        self, what: str, said: RequestedRecord | RespondedRecord | DeniedRecord
    ) -> JournalRecord:
        return JournalRecord.feature_record(
            msgspec.structs.replace(base_of(self.request, self._next(), what), tags=("approval",)),
            JournalRecordKind.APPROVAL,
            event_family="approval",
            event_kind=f"approval_{what}",
            subject_ref=self.request.subject_ref(),
            payload=ApprovalRecord.of(said),
        )

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def _call(asked: Asked) -> dict[str, Any]:
    names = (
        "attempt",
        "tool",
        "surface",
        "side_effect",
        "idempotent",
        "schema_digest",
        "policy",
        "request_digest",
        "arguments_ref",
        "summary",
    )
    return {name: getattr(asked, name) for name in names}
