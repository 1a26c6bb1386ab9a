"""Records of hooks: events of an invocation, and the journal records of a judged response.

An accepted response has three records, numbered in a row: the decision, the intent of the change
and its result. A rejected one has the first only. Both are functions of their arguments.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from rookery.schemas.facts import hook as facts
from rookery.schemas.ids import (
    AgentId,
    AttemptId,
    EffectId,
    HookId,
    JournalCursor,
    RunId,
    SessionId,
    TurnId,
)
from rookery.schemas.seed.hook import (
    CancelledInvocation,
    CompletedInvocation,
    FailedInvocation,
    HookRecord,
    HookResponseClass,
    HookResponseDecision,
    ResponseDecision,
    TimedOutInvocation,
    hook_entity_ref,
)
from rookery.schemas.seed.hook_invocation import HookCancellationToken, HookResponse
from rookery.schemas.seed.hook_spec import HookSpec
from rookery.schemas.seed.lifecycle import (
    EffectIntent,
    EffectKind,
    EffectResult,
    EffectTerminalStatus,
)
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.records import (
    HookPayload,
    JournalRecord,
    JournalRecordBase,
    JournalRecordKind,
)
from rookery.schemas.seed.refs import DestinationRef, PrivacyClass, SourceKind, SourceRef

__all__ = [
    "AcceptedRecords",
    "HookInvocationOutcome",
    "HookInvocationStatus",
    "HookLifecycleContext",
    "Judged",
    "accepted_records",
    "agent_source",
    "cancelled_record",
    "completed_record",
    "decision_record",
    "failed_record",
    "hook_source",
    "intent_of",
    "journal_records",
    "rejected_record",
    "result_of",
    "timed_out_record",
]

# --- context and outcome --------------------------------------------------------------------------

# The context of an invocation, and what an invocation has as its outcome.


class HookLifecycleContext(msgspec.Struct, frozen=True, kw_only=True):
    """The run, and the step of it, that hooks are invoked for."""

    run_id: RunId
    agent_id: AgentId
    session_id: SessionId | None = None
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    source: SourceRef
    destination: DestinationRef | None = None
    package_fingerprint: RuntimePackageFingerprint
    cancellation: HookCancellationToken = HookCancellationToken()

    @classmethod
    def new(
        cls,
        run_id: RunId,
        agent_id: AgentId,
        source: SourceRef,
        package_fingerprint: RuntimePackageFingerprint,
    ) -> HookLifecycleContext:
        return cls(
            run_id=run_id,
            agent_id=agent_id,
            source=source,
            package_fingerprint=package_fingerprint,
        )


class HookInvocationStatus(StrEnum):
    """How an invocation without an error ended."""

    COMPLETED = "completed"
    APPLIED_JOURNALED_MUTATION = "applied_journaled_mutation"
    REJECTED_MUTATION_RIGHT = "rejected_mutation_right"
    REJECTED_POINT_MATRIX = "rejected_point_matrix"
    REJECTED_POLICY = "rejected_policy"
    TIMED_OUT_FAIL_OPEN = "timed_out_fail_open"
    FAILED_OPEN = "failed_open"
    CANCELLED = "cancelled"


class HookInvocationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one invocation."""

    hook_id: HookId
    status: HookInvocationStatus
    response_class: HookResponseClass | None = None
    accepted_response: HookResponse | None = None
    """What the caller may apply; only an applied outcome has it."""
    journal_cursor: JournalCursor | None = None
    journaled_before_apply: bool = False
    record: HookRecord


FAMILY: Final = "hook"
EVENT_KIND: Final = "hook_response_decision"
REDACTION_POLICY: Final = "policy.redaction.hook.default"


class Judged(NamedTuple):
    """A response that was judged, and by which invocation it was given."""

    spec: HookSpec
    context: HookLifecycleContext
    invocation_id: str
    response_class: HookResponseClass


class AcceptedRecords(NamedTuple):
    """The records of an accepted response, in the order of their appends."""

    hook_record: HookRecord
    response: JournalRecord
    intent: JournalRecord
    result: JournalRecord


def hook_source(spec: HookSpec) -> SourceRef:
    """The hook as the source of what it does."""
    return SourceRef.new(spec.hook_id.as_str(), SourceKind.HOOK)


# --- events of an invocation ----------------------------------------------------------------------


def completed_record(spec: HookSpec, invocation_id: str) -> HookRecord:
    """The contract writes no time of a hook that only observed."""
    return _record(spec, CompletedInvocation(invocation_id=invocation_id, elapsed_ms=0))


def cancelled_record(spec: HookSpec, invocation_id: str) -> HookRecord:
    return _record(spec, CancelledInvocation(invocation_id=invocation_id))


def timed_out_record(spec: HookSpec, invocation_id: str, elapsed_ms: int) -> HookRecord:
    event = TimedOutInvocation(
        invocation_id=invocation_id,
        elapsed_ms=elapsed_ms,
        failure_policy=spec.failure.variant,
    )
    return _record(spec, event)


def failed_record(spec: HookSpec, invocation_id: str, summary: str) -> HookRecord:
    event = FailedInvocation(
        invocation_id=invocation_id,
        failure_policy=spec.failure.variant,
        redacted_summary=summary,
    )
    return _record(spec, event)


def decision_record(
    spec: HookSpec,
    invocation_id: str,
    decision: HookResponseDecision,
    response_class: HookResponseClass,
) -> HookRecord:
    """The decision on a response; only an accepted one has a target, the hook itself."""
    accepted = decision is HookResponseDecision.ACCEPTED_JOURNALED_BEFORE_APPLY
    event = ResponseDecision(
        invocation_id=invocation_id,
        decision=decision,
        response_class=response_class,
        target_domain_refs=(hook_entity_ref(spec.hook_id),) if accepted else (),
    )
    return _record(spec, event)


def _record(
    spec: HookSpec,
    event: CompletedInvocation
    | CancelledInvocation
    | TimedOutInvocation
    | FailedInvocation
    | ResponseDecision,
) -> HookRecord:
    return HookRecord(hook_id=spec.hook_id, point=spec.point, payload=event)


# --- journal records ------------------------------------------------------------------------------


def accepted_records(judged: Judged, seq: int) -> AcceptedRecords:
    """The three records of an accepted response, numbered from ``seq``."""
    spec, variant = judged.spec, judged.response_class.variant
    hook_record = decision_record(
        spec,
        judged.invocation_id,
        HookResponseDecision.ACCEPTED_JOURNALED_BEFORE_APPLY,
        judged.response_class,
    )
    intent = EffectIntent(
        effect_id=EffectId(f"effect.hook.{spec.hook_id.as_str()}.{judged.invocation_id}"),
        kind=EffectKind.HOOK_MUTATION,
        subject_ref=hook_entity_ref(spec.hook_id),
        source=hook_source(spec),
        policy_refs=(spec.policy_ref,),
        redacted_summary=f"accepted hook response {variant}",
    )
    result = EffectResult(
        effect_id=intent.effect_id,
        terminal_status=EffectTerminalStatus.COMPLETED,
        redacted_summary=f"accepted hook response {variant} journaled before apply",
    )
    record_id = _record_id(spec, seq)
    return AcceptedRecords(
        hook_record=hook_record,
        response=_response_record(judged, seq, hook_record),
        intent=JournalRecord.effect_intent(_base(judged, seq + 1, f"{record_id}.intent"), intent),
        result=JournalRecord.effect_result(_base(judged, seq + 2, f"{record_id}.result"), result),
    )


def rejected_record(judged: Judged, seq: int) -> tuple[HookRecord, JournalRecord]:
    """The record of a response that the guard refused."""
    hook_record = decision_record(
        judged.spec,
        judged.invocation_id,
        HookResponseDecision.REJECTED_POLICY,
        judged.response_class,
    )
    return hook_record, _response_record(judged, seq, hook_record)


def _response_record(judged: Judged, seq: int, hook_record: HookRecord) -> JournalRecord:
    """Its source is the hook; those of intent and result are what their effect says."""
    base = _base(judged, seq, f"{_record_id(judged.spec, seq)}.response")
    return JournalRecord.feature_record(
        replace(base, source=hook_source(judged.spec), tags=(FAMILY,)),
        JournalRecordKind.HOOK,
        event_family=FAMILY,
        event_kind=EVENT_KIND,
        subject_ref=hook_entity_ref(judged.spec.hook_id),
        payload=HookPayload(
            hook_id=hook_record.hook_id, point=hook_record.point, payload=hook_record.payload
        ),
    )


def _record_id(spec: HookSpec, seq: int) -> str:
    return f"journal.hook.{spec.hook_id.as_str()}.{seq}"


def _base(judged: Judged, seq: int, record_id: str) -> JournalRecordBase:
    context = judged.context
    return JournalRecordBase(
        journal_seq=seq,
        record_id=record_id,
        run_id=context.run_id,
        session_id=context.session_id,
        agent_id=context.agent_id,
        turn_id=context.turn_id,
        attempt_id=context.attempt_id,
        source=context.source,
        runtime_package_fingerprint=context.package_fingerprint.as_str(),
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        redaction_policy_id=REDACTION_POLICY,
    )


# --- records and facts ----------------------------------------------------------------------------

_S = TypeVar("_S", bound=msgspec.Struct)


def intent_of(record: JournalRecord) -> EffectIntent:
    """The intent in a record, as a fact has it."""
    return _plain(EffectIntent, record.payload)


def result_of(record: JournalRecord) -> EffectResult:
    """The result in a record, as a fact has it."""
    return _plain(EffectResult, record.payload)


def _plain(kind: type[_S], payload: Any) -> _S:
    return kind(**{name: getattr(payload, name) for name in kind.__struct_fields__})


def journal_records(
    decided: facts.ResponseDecided,
    intended: facts.MutationIntended,
    resulted: facts.MutationResulted,
) -> tuple[JournalRecord, JournalRecord, JournalRecord]:
    """The records that the coordinator appended, from the facts that hold them."""
    first = decided.record
    record_id = first.record_id.removesuffix(".response")
    base = JournalRecordBase(
        journal_seq=first.journal_seq + 1,
        record_id=f"{record_id}.intent",
        run_id=first.run_id,
        session_id=first.session_id,
        agent_id=first.agent_id,
        turn_id=first.turn_id,
        attempt_id=first.attempt_id,
        source=agent_source(first.agent_id),
        runtime_package_fingerprint=first.runtime_package_fingerprint,
        privacy=first.privacy,
        redaction_policy_id=first.redaction_policy_id,
    )
    last = replace(base, journal_seq=first.journal_seq + 2, record_id=f"{record_id}.result")
    return (
        first,
        JournalRecord.effect_intent(base, intended.effect_intent),
        JournalRecord.effect_result(last, resulted.effect_result),
    )


def agent_source(agent_id: AgentId) -> SourceRef:
    """The agent of a session, for whose step hooks are invoked."""
    return SourceRef.new(agent_id.as_str(), SourceKind.EXTENSION)
