"""The index of every fact, by which filters find it, and the privacy class of every fact.

A fact type that is in no list here fails a test, until it is written down whether it ends something
and what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType

from rookery.schemas.calls import CallArguments
from rookery.schemas.envelope import DEFAULT_CLASSES, Fact, FactClasses
from rookery.schemas.events import EventFilter, PayloadAccessMode
from rookery.schemas.facts import (
    code,
    conversation,
    hook,
    model,
    peer,
    sandbox,
    session,
    tool,
    turn,
)
from rookery.schemas.ids import AgentId, EntityRefId, Identifier, RunId, SessionId, SourceId, TurnId
from rookery.schemas.protection.sealed_values import FIELD
from rookery.schemas.seed.records import JOURNAL_BACKED, EventIndexProjection
from rookery.schemas.seed.refs import (
    EntityKind,
    EntityRef,
    PrivacyClass,
    SourceKind,
    SourceRef,
    TrustClass,
)

__all__ = [
    "CONTENT_CLASSES",
    "DEFAULT_PRIVACY",
    "FAMILY_INDEXES",
    "NO_RUN",
    "FactClasses",
    "FamilyIndex",
    "event_index",
    "event_kind",
    "fact_classes",
    "is_terminal",
    "privacy_of",
    "select_fact",
    "up_to",
]

DEFAULT_PRIVACY: Final = PrivacyClass.INTERNAL
NO_RUN: Final = "-"
"""In the index of a fact that belongs to no run, where the contract demands an id."""

# --- classes --------------------------------------------------------------------------------------


_SENSITIVE: Final = FactClasses(PrivacyClass.SENSITIVE)


def fact_classes(fact: Fact, at_least: FactClasses = DEFAULT_CLASSES) -> FactClasses:
    """The classes of a fact: higher than those of its session and its realm, ``at_least``, if it
    holds a sensitive value, sealed."""
    classes_of = CONTENT_CLASSES.get(type(fact))
    return at_least if classes_of is None else at_least.raised_by(classes_of(fact))


def _of_outcome(fact: tool.Completed) -> FactClasses:
    return _SENSITIVE if fact.sealed is True else DEFAULT_CLASSES


def _of_arguments(fact: tool.Requested | tool.Adopted) -> FactClasses:
    return _SENSITIVE if _has_sealed(fact.arguments) else DEFAULT_CLASSES


def _of_batch(fact: turn.ToolCallsReturned | code.Stepped) -> FactClasses:
    return (
        _SENSITIVE if any(_has_sealed(call.arguments) for call in fact.calls) else DEFAULT_CLASSES
    )


def _of_readers(_: Fact) -> FactClasses:
    """Of what every reader of facts may see: programs, their inputs and results, messages."""
    return DEFAULT_CLASSES


CONTENT_CLASSES: Final[dict[type[Fact], Callable[[Any], FactClasses]]] = {
    tool.Completed: _of_outcome,
    tool.Requested: _of_arguments,
    tool.Adopted: _of_arguments,
    turn.ToolCallsReturned: _of_batch,
    code.Stepped: _of_batch,
    conversation.MessageAdded: _of_readers,
    conversation.Compacted: _of_readers,
    hook.ResponseDecided: _of_readers,
    model.Answered: _of_readers,
    peer.ItemAssigned: _of_readers,
    peer.PlainEventClassified: _of_readers,
    sandbox.SnapshotRestored: _of_readers,
    session.InputAccepted: _of_readers,
    turn.Started: _of_readers,
    turn.Completed: _of_readers,
    turn.Failed: _of_readers,
    turn.Cancelled: _of_readers,
}
"""Every fact that holds what a program, a tool, a model or a client wrote, with its classes. All
other facts have the defaults."""


def _has_sealed(given: CallArguments | UnsetType) -> bool:
    """A sealed value is in the place of an argument; large arguments are in the blob store."""
    return given is not UNSET and any(
        isinstance(value, dict) and value.keys() == {FIELD}
        for value in (*given.args, *given.kwargs.values())
    )


# --- index ----------------------------------------------------------------------------------------


class FamilyIndex(NamedTuple):
    """What the facts of a family are about, and which of them end something."""

    subject: EntityKind
    fields: tuple[str, ...]
    """The first of these that a fact has names its subject; else its entity's key does."""
    ends: frozenset[str]
    steps: frozenset[str]


def _family(subject: EntityKind, fields: str, *, ends: str, steps: str) -> FamilyIndex:
    names = (frozenset(text.split()) for text in (ends, steps))
    return FamilyIndex(subject, tuple(fields.split()), *names)


FAMILY_INDEXES: Final[dict[str, FamilyIndex]] = {
    "approval": _family(
        EntityKind.APPROVAL_REQUEST,
        "approval_id grant_id name",
        ends="decided expiry_observed answered closed auto_allowed grant_consumed grant_expired"
        " grant_revoked approver_revoked",
        steps="created restored requested dispatch_intended dispatched escalated dispatch_resulted"
        " recovery_required answer_refused grant_issued session_grant_issued approver_added"
        " approver_refused history_restarted",
    ),
    "code": _family(EntityKind.TOOL_CALL, "operation_id", ends="ended", steps="stepped"),
    "conversation": _family(EntityKind.MESSAGE, "", ends="", steps="message_added compacted"),
    "hook": _family(
        EntityKind.HOOK,
        "hook_id",
        ends="mutation_resulted removed response_rejected",
        steps="mode_set mutation_intended noted registered response_decided",
    ),
    "lease": _family(
        EntityKind.CAPABILITY,
        "",
        ends="released browser_flow_consumed browser_flow_expired device_flow_consumed"
        " device_flow_expired",
        steps="acquired expiring_marked refresh_begun refresh_completed refresh_failed_transient"
        " refresh_failed_permanent reauth_required credential_cleared freshness_observed"
        " acquisition_begun acquisition_failed refresh_intended credential_rejected wait_begun"
        " waits_ended browser_flow_admitted browser_flow_verified device_flow_admitted"
        " device_flow_verified device_poll_begun device_poll_finished release_undone restored",
    ),
    "model": _family(
        EntityKind.ATTEMPT, "run", ends="answered failed lost", steps="requested job_started"
    ),
    "node": _family(
        EntityKind.EXECUTION_ENVIRONMENT,
        "node",
        ends="stopped",
        steps="started partitions_taken checkpoint command_quarantined message_quarantined"
        " rights_revoked",
    ),
    "peer": _family(
        EntityKind.MESSAGE,
        "corr_id item_id",
        ends="drain_exited_clean response_ended request_timed_out request_send_failed"
        " response_replied stream_completed stream_expired stream_closed_early stream_abandoned"
        " declined message_failed item_dropped item_handled receiver_left push_target_removed",
        steps="drain_ensured drain_spawned drain_stopped drain_exited_respawnable"
        " drain_exit_notified envelope_classified plain_event_classified ingress_context_set"
        " request_sent response_progressed response_rejected request_received stream_reserved"
        " stream_attached context_advanced message_sent progress_sent delivered"
        " response_unmatched receiver_waiting item_assigned item_returned responder_set"
        " enrolled paired key_rotated revoked push_target_set agent_called remote_task expired",
    ),
    "sandbox": _family(
        EntityKind.EXECUTION_ENVIRONMENT,
        "snapshot_id",
        ends="",
        steps="snapshot_kept snapshot_restored history_restarted",
    ),
    "session": _family(
        EntityKind.AGENT,
        "",
        ends="retired destroyed executor_exited run_committed run_failed run_rolled_back"
        " input_cancelled input_refused",
        steps="initialized registered unregistered bindings_prepared executor_ensured"
        " silent_intents_set reset executor_stop_requested recovered run_interrupt_requested"
        " boundary_cancel_requested queued_run_drained work_ingested limits_set rights_narrowed"
        " classes_raised input_accepted run_prepared recycled reply_requested history_restarted",
    ),
    "surface": _family(
        EntityKind.CAPABILITY,
        "surface_id server_id",
        ends="dropped removal_finalized removal_forced shut_down server_disconnected",
        steps="catalogued registered add_staged remove_staged reload_staged boundary_applied"
        " pending_succeeded pending_failed call_started call_finished snapshot_aligned"
        " server_connecting server_connected server_failed server_reload_requested",
    ),
    "tool": _family(
        EntityKind.TOOL_CALL,
        "operation_id",
        ends="refused completed failed recovery_required withdrawn",
        steps="requested awaited credential_ready adopted allowed intent_recorded retry_allowed"
        " history_restarted",
    ),
    "turn": _family(
        EntityKind.RUN,
        "run",
        ends="completed failed cancelled cancelled_without_run terminal_acknowledged"
        " product_turn_ended",
        steps="started immediate_append_started immediate_context_started primitive_applied"
        " tool_calls_returned terminal_returned ops_registered ops_barrier_satisfied"
        " tool_calls_resolved boundary_applied boundary_completed callback_pending"
        " extraction_entered extraction_started extraction_validation_passed"
        " extraction_validation_failed extraction_failed attempt_failed retry_requested"
        " fatally_failed cancel_requested boundary_cancel_requested cancellation_observed"
        " turn_limit_reached budget_exhausted time_budget_exceeded parked unparked"
        " slot_projected slot_claimed slot_claim_aborted slot_begun slot_resolved slot_finalized"
        " slot_interrupt_requested slot_shutdown_requested slot_drained slot_teardown_authorized"
        " slot_boundary_cancel_authorized slot_dispatch_resolved slot_disposition_resolved"
        " slot_keep_alive_resolved slot_public_terminal_resolved product_turn_started"
        " product_turn_committed product_output_started product_turn_interrupted"
        " projection_advanced projection_refreshed projection_reset client_input_submitted"
        " mid_turn_activity_seen termination_seen baseline_set history_restarted",
    ),
}
"""Every fact, in one of the two lists of its family."""
_ENDS: Final = frozenset(
    f"{family}_{name}" for family, index in FAMILY_INDEXES.items() for name in index.ends
)
_REALM_KEYS: Final = "_"


def event_kind(wire_name: str) -> str:
    """``tool.completed.v1`` is ``tool_completed``, in every version."""
    return wire_name.rpartition(".v")[0].replace(".", "_")


def is_terminal(index: EventIndexProjection) -> bool:
    """Whether the fact ends a run, a call, an approval or another thing of its kind."""
    return index.event_kind in _ENDS


def event_index(fields: Mapping[str, Any], key: str) -> EventIndexProjection:
    """The index of a fact as written, of an entity with this key. It never reads what a program, a
    tool or a client wrote."""
    name = str(fields.get("type", ""))
    family, run = name.partition(".")[0], _id(fields.get("run"))
    related = [] if run == NO_RUN else [_ref(EntityKind.RUN, run)]
    if (operation := _id(fields.get("operation_id"))) != NO_RUN:
        related.append(_ref(EntityKind.TOOL_CALL, operation))
    is_of_realm = key.startswith(_REALM_KEYS) or family in ("lease", "node")
    return EventIndexProjection(
        run_id=RunId(run),
        session_id=None if is_of_realm else SessionId(_id(key)),
        agent_id=AgentId(_id(f"agent.{key}")),
        turn_id=None if run == NO_RUN else TurnId(_id(f"turn.{run}")),
        event_family=family,
        event_kind=event_kind(name),
        source=_source(fields),
        subject_ref=_subject(family, fields, key),
        related_refs=tuple(related),
        privacy_class=privacy_of(fields),
        delivery_semantics=JOURNAL_BACKED,
    )


def privacy_of(fields: Mapping[str, Any]) -> PrivacyClass:
    """The class of a fact as written; one that this version does not know is the strictest."""
    try:
        return PrivacyClass(fields.get("privacy", DEFAULT_PRIVACY))
    except ValueError:
        return PrivacyClass.SECRET


def _subject(family: str, fields: Mapping[str, Any], key: str) -> EntityRef:
    index = FAMILY_INDEXES.get(family)
    if index is None:  # Of a newer version.
        return _ref(EntityKind.EVENT, _id(fields.get("id") or key))
    named = next((fields[name] for name in index.fields if fields.get(name)), key)
    return _ref(index.subject, _id(named))


def _id(value: object) -> str:
    """The value if it may be an id: a foreign message has what it likes."""
    try:
        return Identifier(value).as_str() if isinstance(value, str) else NO_RUN
    except ValueError:
        return NO_RUN


def _ref(kind: EntityKind, name: str) -> EntityRef:
    return EntityRef(kind=kind, id=EntityRefId(name), privacy=PrivacyClass.CONTENT_REFS_ONLY)


def _source(fields: Mapping[str, Any]) -> SourceRef:
    """The client that sent the command, or the decider that wrote the fact."""
    if by := fields.get("by"):
        return SourceRef(
            kind=SourceKind.USER,
            id=SourceId(_id(by)),
            trust=TrustClass.USER_PROVIDED,
            privacy=PrivacyClass.CONTENT_REFS_ONLY,
        )
    return SourceRef.new(_id(fields.get("source")), SourceKind.SDK)


# --- selection ------------------------------------------------------------------------------------

_ENVELOPE: Final = frozenset(("type", *Fact.__struct_fields__))
_REFS: Final = ("blob", "_blob", "_digest", "_ref")


def up_to(highest: PrivacyClass) -> EventFilter:
    """The filter of facts that this class and those below it may read."""
    return EventFilter.of(privacy_classes=highest.and_below)


def select_fact(where: EventFilter, fields: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """What a reader with this filter gets of a fact; ``None`` if it is not selected."""
    index = event_index(fields, key)
    if not where.matches(index, is_terminal=is_terminal(index)):
        return None
    match where.payload_access:
        case PayloadAccessMode.FULL_PAYLOAD_IF_POLICY_ALLOWS:
            return dict(fields)
        case PayloadAccessMode.PAYLOAD_REFS:
            return {
                name: value
                for name, value in fields.items()
                if name in _ENVELOPE or (name.endswith(_REFS) and isinstance(value, str))
            }
        case _:
            return {name: value for name, value in fields.items() if name in _ENVELOPE}
