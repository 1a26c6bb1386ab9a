"""The facts of runs as the contract's journal records.

Each record of a run has the next number of the run, without a hole, and the correlation that all of
them share. Facts of approvals and hooks hold records of their own, which get new numbers; a fact
that the contract has no record for leaves none. No record has a value: it has refs and digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks.points import journal_records
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import DEFAULT_CLASSES, Fact, FactClasses
from rookery.schemas.event_index import fact_classes
from rookery.schemas.facts import approval, hook, model, session, tool, turn
from rookery.schemas.ids import (
    AgentId,
    ContentRef,
    CorrelationKey,
    CorrelationValue,
    EffectId,
    IdempotencyKey,
    MessageId,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
)
from rookery.schemas.run import CallStatus
from rookery.schemas.seed.lifecycle import (
    EffectIntent,
    EffectKind,
    EffectResult,
    EffectTerminalStatus,
    MessageRecord,
    ModelAttemptRecord,
    PendingSideEffect,
    ProviderUsage,
    RecoveryMarker,
    RunLifecycleRecord,
    TurnLifecycleRecord,
    TurnLifecycleStatus,
)
from rookery.schemas.seed.records import (
    JournalRecord,
    JournalRecordBase,
    JournalRecordKind,
    JournalRecordPayload,
)
from rookery.schemas.seed.refs import (
    CorrelationEntry,
    DestinationKind,
    DestinationRef,
    EntityKind,
    EntityRef,
    SourceKind,
    SourceRef,
)

__all__ = ["RunRecords", "decode_run_facts"]

CORRELATION: Final = "Rookery-Correlation"
_CODECS: Final[dict[str, FactCodec[Any]]] = {
    "approval": FactCodec(approval.APPROVAL_FACTS),
    "session": FactCodec(session.SESSION_FACTS),
    "tool": FactCodec(tool.TOOL_FACTS),
    "turn": FactCodec(turn.RUN_FACTS),
}
"""By the family of an entity; the facts of all others belong to no run."""
_RESULTS: Final = {
    CallStatus.DENIED: EffectTerminalStatus.DENIED_BEFORE_EXECUTION,
    CallStatus.TIMEOUT: EffectTerminalStatus.TIMED_OUT,
}
_TURN_ENDS: Final[dict[type[Fact], TurnLifecycleStatus]] = {
    turn.Completed: TurnLifecycleStatus.COMPLETED,
    turn.Failed: TurnLifecycleStatus.FAILED,
    turn.Cancelled: TurnLifecycleStatus.FAILED,
}
_RUN_WORDS: Final[dict[type[Fact], str]] = {
    turn.Started: "started",
    turn.CancelRequested: "cancel_requested",
    turn.Parked: "parked",
    turn.Unparked: "resumed",
    turn.Completed: "completed",
    turn.Failed: "failed",
    turn.Cancelled: "cancelled",
}


@dataclass(slots=True)
class _Run:
    """One run, up to its last fact."""

    records: int = 0
    fingerprint: str = ""
    model: model.Requested | None = None
    """The last question."""
    decided: hook.ResponseDecided | None = None
    intended: hook.MutationIntended | None = None
    intents: dict[str, str] | None = None
    """The last intent's record of each call."""


class RunRecords:
    """The records of runs, from their messages in the order of the journal."""

    def __init__(self, run_id: str = "") -> None:
        """``run_id``: only of this run; empty: of all runs."""
        self._only, self._runs = run_id, dict[str, _Run]()

    def of(self, stored: StoredMessage) -> Iterator[JournalRecord]:
        """The records of the next message."""
        for fact in decode_run_facts(stored):
            if fact.run is not UNSET and self._only in ("", fact.run):
                run = self._runs.setdefault(fact.run, _Run())
                for record in _records(run, fact, stored.entity.key):
                    run.records += 1
                    yield _numbered(record, run.records)


def decode_run_facts(stored: StoredMessage) -> list[Any]:
    """The facts of a message that may be of runs; foreign and damaged ones have none."""
    codec = _CODECS.get(stored.entity.family)
    return [] if codec is None else list(codec.decode(stored.body))


def _numbered(record: JournalRecord, number: int) -> JournalRecord:
    entry = CorrelationEntry(CorrelationKey(CORRELATION), CorrelationValue(record.run_id.as_str()))
    keys = (entry, *record.correlation_keys)
    index = replace(record.event_index, correlation_keys=keys)
    return replace(record, journal_seq=number, correlation_keys=keys, event_index=index)


def _records(run: _Run, fact: Any, key: str) -> Iterator[JournalRecord]:
    """The records of one fact, with any numbers."""
    match fact:
        case turn.Started(offer=offer) if offer is not UNSET:
            run.fingerprint = offer.package_fingerprint or ""
        case turn.Unparked(package_fingerprint=str(fingerprint)):
            run.fingerprint = fingerprint
        case model.Requested():
            run.model = fact
        case hook.ResponseDecided():
            run.decided = fact
        case hook.MutationIntended():
            run.intended = fact
        case hook.MutationResulted() if run.decided and run.intended:
            yield from journal_records(run.decided, run.intended, fact)
            return
        case hook.ResponseRejected() | approval.Requested() | approval.DispatchIntended():
            yield fact.record
            return
        case approval.DispatchResulted() | approval.RecoveryRequired() | approval.Answered():
            yield fact.record
            return
        case approval.Closed():
            yield fact.record
            return
    made = _MADE.get(type(fact))
    if made is not None:
        yield from made(_base(run, fact, key), run, fact)


def _base(run: _Run, fact: Any, key: str) -> JournalRecordBase:
    return JournalRecordBase(
        journal_seq=1,
        record_id=f"journal.record.{fact.id}",
        run_id=RunId(fact.run),
        session_id=SessionId(key),
        agent_id=AgentId(f"agent.{key}"),
        turn_id=TurnId(f"turn.{fact.run}"),
        source=SourceRef.new(fact.source or "node", SourceKind.SDK),
        causal_refs=fact.cause,
        timestamp_millis=fact.at_ms,
        runtime_package_fingerprint=run.fingerprint or "unknown",
        privacy=fact_classes(fact, FactClasses(fact.privacy or DEFAULT_CLASSES.privacy)).privacy,
    )


# --- one fact -------------------------------------------------------------------------------------


def _message(
    base: JournalRecordBase, _: _Run, fact: session.InputAccepted
) -> Iterator[JournalRecord]:
    has_prompt = fact.request is not UNSET and fact.request.has_prompt
    payload = MessageRecord(
        message_id=MessageId(fact.input_id),
        role="user",
        redacted_summary="a prompt" if has_prompt else "a program",
    )
    yield _feature(base, JournalRecordKind.MESSAGE, "message", "accepted", payload)


def _lifecycle(base: JournalRecordBase, _: _Run, fact: Any) -> Iterator[JournalRecord]:
    """The turn before its run, whose end is the last record of a run."""
    word = _RUN_WORDS[type(fact)]
    status = _TURN_ENDS.get(type(fact))
    if isinstance(fact, turn.Started):
        status = TurnLifecycleStatus.STARTED
    if status is not None and base.turn_id is not None:
        of_turn = replace(base, record_id=f"{base.record_id}.turn")
        payload = TurnLifecycleRecord(
            turn_id=base.turn_id,
            run_ids=(base.run_id,),
            status=status,
            redacted_summary=f"turn {word}",
        )
        yield _feature(of_turn, JournalRecordKind.TURN, "turn", f"turn_{status}", payload)
    reason = getattr(fact, "code", "") or str(fact.__struct_config__.tag)
    lifecycle = RunLifecycleRecord(status=word, reason=reason)
    yield _feature(base, JournalRecordKind.RUN, "run", f"run_{word}", lifecycle)


def _intent(
    base: JournalRecordBase, run: _Run, fact: tool.IntentRecorded
) -> Iterator[JournalRecord]:
    run.intents = {**(run.intents or {}), fact.operation_id: base.record_id}
    yield JournalRecord.effect_intent(
        base,
        EffectIntent(
            effect_id=_effect(fact),
            kind=EffectKind.TOOL_EXECUTION,
            subject_ref=EntityRef.new(EntityKind.TOOL_CALL, ToolCallId(fact.operation_id)),
            source=base.source,
            destination=DestinationRef.new(fact.node or "node", DestinationKind.TOOL),
            idempotency_key=IdempotencyKey(fact.operation_id),
            redacted_summary=f"attempt {fact.attempt} of call {fact.operation_id}",
        ),
    )


def _outcome(base: JournalRecordBase, _: _Run, fact: Any) -> Iterator[JournalRecord]:
    refs: tuple[ContentRef, ...] = ()
    error: str | None = None
    match fact:
        case tool.Completed(response_digest=digest, value_blob=blob):
            status = EffectTerminalStatus.COMPLETED
            named = blob if blob is not UNSET else digest
            refs = (ContentRef(f"blob:{named}"),) if named else ()
        case tool.Withdrawn():
            status = EffectTerminalStatus.CANCELLED
        case tool.Refused(error=fault):
            status, error = EffectTerminalStatus.DENIED_BEFORE_EXECUTION, fault.code
        case _:
            status = _RESULTS.get(fact.status, EffectTerminalStatus.FAILED)
            error = fact.error.code
    result = EffectResult(
        effect_id=_effect(fact),
        terminal_status=status,
        error_ref=error,
        content_refs=refs,
        redacted_summary=f"call {fact.operation_id}: {status}",
    )
    yield JournalRecord.effect_result(base, result)


def _unresolved(
    base: JournalRecordBase, run: _Run, fact: tool.RecoveryRequired
) -> Iterator[JournalRecord]:
    pending = PendingSideEffect(
        effect_id=_effect(fact),
        intent_record_id=(run.intents or {}).get(fact.operation_id, "unknown"),
        idempotency_key=IdempotencyKey(fact.operation_id),
        unsafe_pending_reason="the outcome of the call is unknown",
    )
    marker = RecoveryMarker(unsafe_pending=(pending,), recovery_reason="an operator resolves it")
    yield JournalRecord.recovery(base, marker)


def _attempt(base: JournalRecordBase, run: _Run, fact: model.Answered) -> Iterator[JournalRecord]:
    asked, usage = run.model, fact.usage
    payload = ModelAttemptRecord(
        provider_route_id="unknown" if asked is None else f"{asked.provider}.{asked.model}",
        provider_model_id="unknown" if asked is None else asked.provider_model,
        request_message_count=0 if asked is None else asked.messages,
        stop_reason=fact.stop_reason,
        usage=ProviderUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
    )
    yield _feature(base, JournalRecordKind.MODEL_ATTEMPT, "model", "model_answered", payload)


def _effect(fact: Any) -> EffectId:
    return EffectId(f"effect.{fact.operation_id}")


def _feature(
    base: JournalRecordBase,
    kind: JournalRecordKind,
    family: str,
    event: str,
    payload: JournalRecordPayload,
) -> JournalRecord:
    return JournalRecord.feature_record(
        base,
        kind,
        event_family=family,
        event_kind=event,
        subject_ref=EntityRef.run(base.run_id),
        payload=payload,
    )


_MADE: Final[
    Mapping[type[Fact], Callable[[JournalRecordBase, _Run, Any], Iterator[JournalRecord]]]
] = {
    session.InputAccepted: _message,
    **dict.fromkeys(_RUN_WORDS, _lifecycle),
    tool.IntentRecorded: _intent,
    tool.Completed: _outcome,
    tool.Failed: _outcome,
    tool.Refused: _outcome,
    tool.Withdrawn: _outcome,
    tool.RecoveryRequired: _unresolved,
    model.Answered: _attempt,
}
