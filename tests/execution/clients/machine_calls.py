"""Every method of every typed face of the live machines: stories in which the machines accept them.

A story runs on a session of its own, from its opening on. A check is a value, or a function of what
the method returned.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from rookery.bus.client import Client
from rookery.bus.client.machines import (
    AuthLeaseHandle,
    CommsDrainHandle,
    ExternalToolSurfaceHandle,
    InteractionStreamHandle,
    McpServerLifecycleHandle,
    ModelRoutingHandle,
    PeerCommsHandle,
    PeerInteractionHandle,
    RealtimeProductTurnHandle,
    SessionAdmissionHandle,
    SessionContextHandle,
    TurnStateHandle,
)
from rookery.schemas.commands import HandleInput
from rookery.schemas.facts import surface as surface_facts
from rookery.schemas.machines.lease import (
    AuthLeasePhase,
    AuthLeaseSnapshot,
    AuthLeaseTransition,
    LeaseKey,
)
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
    PeerIngressEnvelopeFacts,
    PeerIngressMessage,
    PeerIngressPlainEventFacts,
    PeerTerminalDisposition,
)
from rookery.schemas.machines.surface import ExternalToolSurfaceFailureCause as FailureCause
from rookery.schemas.machines.transition import (
    CloseSurfaceConnection,
    EmitExternalToolDelta,
    RefreshVisibleSurfaceSet,
    RejectSurfaceCall,
    ScheduleSurfaceCompletion,
)
from rookery.schemas.machines.turn import (
    AgentErrorClass,
    AsyncOpRef,
    ContentShape,
    LlmRetryFailure,
    LlmRetryFailureKind,
    LlmRetryPlan,
    LlmRetrySchedule,
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeReconnectPolicy,
    TurnFailureReason,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
    WaitPolicy,
)

Check = Callable[[Any], object]


class Step(NamedTuple):
    """A call of a method that its machine accepts."""

    method: str
    args: tuple[Any, ...] = ()
    returns: Any = lambda _: True
    """A value, or a ``Check``."""

    def fits(self, answer: Any) -> bool:
        return bool(self.returns(answer)) if callable(self.returns) else answer == self.returns


RUN, OP = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"
CORRELATION = "01890000-0000-7000-8000-000000000003"
KEY = LeaseKey("dev", "github", "work")
CONVERSATION = (
    RUN,
    TurnPrimitiveKind.CONVERSATION_TURN,
    ContentShape.CONVERSATION,
    True,
    False,
    1,
)
BROKEN = TurnFailureReason(
    error_class=AgentErrorClass.LLM,
    cause_kind=TurnTerminalCauseKind.LLM_FAILURE,
    message="broken",
)
RETRY = LlmRetrySchedule(
    failure=LlmRetryFailure(
        provider="p", kind=LlmRetryFailureKind.RATE_LIMITED, message="too often"
    ),
    plan=LlmRetryPlan(
        attempt=1,
        max_retries=3,
        computed_delay_ms=500,
        selected_delay_ms=700,
        rate_limit_floor_applied=False,
        budget_capped=False,
    ),
)
ENVELOPE = PeerIngressEnvelopeFacts(
    item_id="i", from_peer="Ann", from_peer_id=CORRELATION, kind=PeerIngressMessage(body="hello")
)
EVENT = PeerIngressPlainEventFacts(source_name="web", body=" hi ")
START = Step("start_conversation_run", CONVERSATION)
APPLIED = Step("primitive_applied", (), lambda view: view.turn_phase == "CallingLlm")
CALLED = Step("llm_returned_tool_calls", (1,), lambda view: view.tool_calls_pending == 1)
DRAINING = Step("llm_returned_terminal", (), lambda view: view.turn_phase == "DrainingBoundary")
LEASED = AuthLeaseSnapshot(
    phase=AuthLeasePhase.VALID, expires_at=100, credential_present=True, generation=4
)


def phase(name: str) -> Check:
    return lambda view: view.turn_phase == name


def outcome(name: str) -> Check:
    return lambda view: view.terminal_outcome == name


_numbers = count(1)


def new_session() -> str:
    """A session that no other test uses."""
    return f"machines-{next(_numbers)}"


async def open_session(client: Client, session: str) -> None:
    for on in ("Initialize", "RegisterSession", "EnsureSessionWithExecutor"):
        await client.ask("admission", session, HandleInput(input=on))


# --- stories --------------------------------------------------------------------------------------

STORIES: dict[str, tuple[type[Any], list[Step]]] = {
    "a turn to its end": (TurnStateHandle, [
        Step("start_conversation_run", CONVERSATION, lambda view: view.active_run_id == RUN),
        APPLIED,
        CALLED,
        Step("register_pending_ops", ({AsyncOpRef(OP, WaitPolicy.DETACHED)}, {OP}),
             lambda view: view.pending_op_refs == (AsyncOpRef(OP, WaitPolicy.BARRIER),)),
        Step("ops_barrier_satisfied", ({OP},), lambda view: view.barrier_satisfied),
        Step("tool_calls_resolved", (), phase("DrainingBoundary")),
        Step("boundary_continue", (), phase("CallingLlm")),
        DRAINING,
        Step("boundary_complete", (), phase("Completed")),
        Step("snapshot", (), phase("Completed")),
        Step("acknowledge_terminal", (TurnTerminalOutcome.COMPLETED,), phase("Ready")),
    ]),
    "a reference's own policy is ignored": (TurnStateHandle, [
        START, APPLIED,
        Step("register_pending_ops", ({AsyncOpRef(OP, WaitPolicy.BARRIER)}, set()),
             lambda view: view.pending_op_refs == (AsyncOpRef(OP, WaitPolicy.DETACHED),)),
        Step("run_completed", (RUN,), phase("Completed")),
        Step("start_immediate_append", (RUN,),
             lambda view: view.effects[0].name == "TurnRunStarted"),
        Step("run_cancelled", (RUN,), phase("Cancelled")),
        Step("start_immediate_context", (RUN,), phase("ApplyingPrimitive")),
    ]),
    "structured output": (TurnStateHandle, [
        START, APPLIED, DRAINING,
        Step("enter_extraction", (1,), phase("Extracting")),
        Step("extraction_start", (), phase("CallingLlm")),
        DRAINING,
        Step("enter_extraction", (1,), phase("Extracting")),
        Step("extraction_validation_failed", ("not JSON",), lambda v: v.extraction_attempts == 1),
        DRAINING,
        Step("enter_extraction", (1,), phase("Extracting")),
        Step("extraction_validation_passed", (), phase("Completed")),
    ]),
    "an extraction that fails": (TurnStateHandle, [
        START, APPLIED, Step("extraction_failed", ("no",), phase("Completed")),
    ]),
    "a retry, and a fatal failure": (TurnStateHandle, [
        START, APPLIED,
        Step("recoverable_failure", (RETRY,), lambda v: v.llm_retry_selected_delay_ms == 700),
        Step("retry_requested", (1,), phase("CallingLlm")),
        Step("fatal_failure", (BROKEN,), phase("Failed")),
        Step("run_failed", (RUN, BROKEN), outcome("failed")),
    ]),
    "a cancelled turn": (TurnStateHandle, [
        START,
        Step("request_cancel_after_boundary", (), lambda view: view.cancel_after_boundary),
        Step("cancel_now", (), phase("Cancelling")),
        Step("cancellation_observed", (), outcome("cancelled")),
    ]),
    "a turn at its last turn": (TurnStateHandle, [
        START, Step("turn_limit_reached", (), outcome("failed")),
    ]),
    "a turn out of time": (TurnStateHandle, [
        START, Step("time_budget_exceeded", (), outcome("time_budget_exceeded")),
    ]),
    "a failed run keeps the outcome that its turn has": (TurnStateHandle, [
        START,
        Step("budget_exhausted", (), outcome("budget_exhausted")),
        Step("run_failed", (RUN, BROKEN), outcome("budget_exhausted")),
    ]),
    "a spoken turn": (RealtimeProductTurnHandle, [
        Step("is_in_flight", (), False),
        Step("current_phase", (), RealtimeProductTurnPhase.IDLE),
        Step("projection_freshness", (), RealtimeProjectionFreshness.CLEAN),
        Step("reconnect_policy_on_clean_close", (), RealtimeReconnectPolicy.CLEAN_EXIT),
        Step("turn_in_flight", (), True),
        Step("turn_in_flight", (), False),
        Step("current_phase", (), RealtimeProductTurnPhase.AWAITING_PROGRESS),
        Step("is_in_flight", (), True),
        Step("output_started", (), True),
        Step("current_phase", (), RealtimeProductTurnPhase.OUTPUT_STARTED),
        Step("should_preempt_on_input", (), False),
        Step("turn_committed", (), True),
        Step("current_phase", (), RealtimeProductTurnPhase.PREEMPTIBLE),
        Step("should_preempt_on_input", (), True),
        Step("turn_interrupted", (), True),
        Step("current_phase", (), RealtimeProductTurnPhase.COMMITTED),
        Step("projection_advance_observed", (5,), True),
        Step("projection_advance_observed", (5,), False),
        Step("projection_freshness", (), RealtimeProjectionFreshness.STALE_DEFERRED),
        Step("projection_frontier_ms", (), 5),
        Step("is_projection_stale_immediate", (), False),
        Step("classify_client_input_submitted", (), True),
        Step("classify_mid_turn_activity", (), False),
        Step("reconnect_policy_on_clean_close", (), RealtimeReconnectPolicy.REATTACH_AND_RECOVER),
        Step("classify_turn_terminated", (), True),
        Step("is_projection_stale_immediate", (), True),
        Step("projection_freshness", (), RealtimeProjectionFreshness.STALE_IMMEDIATE),
        Step("classify_mid_turn_activity", (), True),
        Step("projection_refreshed", (4,), False),
        Step("projection_refreshed", (6,), True),
        Step("projection_reset", (7,), True),
        Step("turn_terminal", (), True),
    ]),
    "a model": (ModelRoutingHandle, [
        Step("set_baseline", ("model", True), lambda view: view.baseline_model == "model"),
    ]),
    "a surface": (ExternalToolSurfaceHandle, [
        Step("surface_snapshot", ("s",), None),
        Step("apply_surface_input", (surface_facts.CallStarted(surface_id="s"),),
             lambda done: done.effects == (
                 RejectSurfaceCall(surface_id="s", cause=FailureCause.SURFACE_UNAVAILABLE),)),
        Step("register", ("s",), lambda view: view.known_surfaces == ("s",)),
        Step("stage_add", ("s", 1), lambda view: view.has_pending_or_staged),
        Step("has_pending_or_staged", (), True),
        Step("apply_boundary", ("s", 2, 1, 1), lambda view: view.entries[0].pending_op == "Add"),
        Step("pending_surfaces", (), frozenset({"s"})),
        Step("mark_pending_succeeded", ("s", 1, 1), lambda v: v.visible_surfaces == ("s",)),
        Step("visible_surfaces", (), frozenset({"s"})),
        Step("snapshot_epoch", (), 2),
        Step("snapshot_aligned", (2,), lambda view: view.snapshot_aligned_epoch == 2),
        Step("snapshot_aligned_epoch", (), 2),
        Step("stage_reload", ("s", 3), lambda view: view.entries[0].staged_op == "Reload"),
        Step("apply_boundary", ("s", 4, 2, 2), lambda v: v.entries[0].pending_op == "Reload"),
        Step("apply_surface_input",
             (surface_facts.PendingFailed(
                 surface_id="s", task_seq=2, lineage_seq=2, cause_in=FailureCause.PENDING_FAILED),),
             lambda done: [e.cause for e in done.effects if isinstance(e, EmitExternalToolDelta)]
             == [FailureCause.PENDING_FAILED]),
        Step("call_started", ("s",), lambda view: view.entries[0].inflight_calls == 1),
        Step("stage_remove", ("s", 5), lambda view: view.entries[0].staged_op == "Remove"),
        Step("apply_boundary", ("s", 6, 3, 3), lambda v: v.entries[0].base_state == "Removing"),
        Step("removing_surfaces", (), frozenset({"s"})),
        Step("call_finished", ("s",), lambda view: view.entries[0].inflight_calls == 0),
        Step("finalize_removal_clean", ("s",), lambda v: v.entries[0].base_state == "Removed"),
        Step("surface_snapshot", ("s",), lambda one: one.base_state == "Removed"),
        Step("diagnostic_snapshot", (), lambda view: view.visible_surfaces == ()),
        Step("shutdown_surface", (), lambda view: view.surface_phase == "Shutdown"),
    ]),
    "a surface's effects": (ExternalToolSurfaceHandle, [
        Step("stage_add", ("s", 1)),
        Step("apply_surface_input", (surface_facts.BoundaryApplied(
            surface_id="s", now_ms=2, staged_seq=1, applied_at_turn=1),),
            lambda done: any(isinstance(e, ScheduleSurfaceCompletion) for e in done.effects)),
        Step("apply_surface_input", (surface_facts.PendingSucceeded(
            surface_id="s", task_seq=1, lineage_seq=1),),
            lambda done: any(isinstance(e, RefreshVisibleSurfaceSet) for e in done.effects)),
        Step("stage_remove", ("s", 3)), Step("apply_boundary", ("s", 4, 2, 2)),
        Step("apply_surface_input", (surface_facts.RemovalFinalized(surface_id="s"),),
            lambda done: CloseSurfaceConnection(surface_id="s") in done.effects),
    ]),
    "a surface that is removed by force, and one that fails": (ExternalToolSurfaceHandle, [
        Step("stage_add", ("s", 1)), Step("apply_boundary", ("s", 2, 1, 1)),
        Step("mark_pending_succeeded", ("s", 1, 1)), Step("call_started", ("s",)),
        Step("stage_remove", ("s", 3)), Step("apply_boundary", ("s", 4, 2, 2)),
        Step("finalize_removal_forced", ("s",), lambda v: v.entries[0].base_state == "Removed"),
        Step("stage_add", ("t", 5)), Step("apply_boundary", ("t", 6, 3, 3)),
        Step("mark_pending_failed", ("t", 2, 3, FailureCause.PENDING_FAILED),
             lambda view: view.entries[1].last_delta_phase == "Failed"),
    ]),
    "servers": (McpServerLifecycleHandle, [
        Step("apply_connect_pending", ("a",), lambda v: v.states == {"a": "PendingConnect"}),
        Step("apply_reload", ("b",)),
        Step("apply_failed", ("a", "broken"), lambda view: view.states["a"] == "Failed"),
        Step("pending_server_ids", (), frozenset({"b"})),
        Step("apply_connected", ("b",), lambda view: view.states["b"] == "Connected"),
        Step("apply_disconnected", ("b",), lambda view: view.pending_server_ids == ()),
    ]),
    "inputs": (SessionAdmissionHandle, [
        Step("ingest", ("r", "w", "External"), lambda view: view.phase == "Attached"),
        Step("accept_with_completion", ("i", False, False, True)),
        Step("accept_without_wake", ("j",)),
        Step("prepare", (RUN,), lambda view: view.current_run_id == RUN),
        Step("commit", ("i", RUN), lambda view: view.current_run_id is None),
        Step("recycle"),
    ]),
    "envelopes": (PeerCommsHandle, [
        Step("set_peer_ingress_context", (True,), lambda view: view.host_phase == "Attached"),
        Step("classify_external_envelope", (ENVELOPE,),
             lambda one: one.rendered_text == "[COMMS MESSAGE from Ann]\nhello"
             and one.classification.input_class == "ActionableMessage"),
        Step("classify_plain_event", (EVENT,),
             lambda admission: admission.rendered_text == "[EVENT via web] hi"),
    ]),
    "a draining task": (CommsDrainHandle, [
        Step("ensure_drain_running"),
        Step("spawn_drain", (DrainMode.TIMED,), lambda view: view.drain_mode == DrainMode.TIMED),
        Step("stop_drain"),
        Step("drain_exited_clean"),
        Step("spawn_drain", (DrainMode.PERSISTENT_HOST,)),
        Step("notify_drain_exited", (DrainExitReason.FAILED,)),
        Step("drain_exited_respawnable"),
        Step("spawn_drain", (DrainMode.ATTACHED_SESSION,)),
        Step("notify_drain_exited", (DrainExitReason.IDLE_TIMEOUT,)),
        Step("notify_drain_exited", (DrainExitReason.DISMISSED,)),
        Step("notify_drain_exited", (DrainExitReason.ABORTED,)),
        Step("notify_drain_exited", (DrainExitReason.SESSION_SHUTDOWN,)),
    ]),
    "a watermark": (SessionContextHandle, [
        Step("current_watermark_ms", (), 0),
        Step("context_advanced", (5,), True),
        Step("context_advanced", (5,), False),
        Step("current_watermark_ms", (), 5),
    ]),
    "requests": (PeerInteractionHandle, [
        Step("outbound_state", (CORRELATION,), None),
        Step("request_sent", (CORRELATION, "peer"),
             lambda view: view.state == OutboundPeerRequestState.SENT),
        Step("response_progress", (CORRELATION,)),
        Step("outbound_state", (CORRELATION,), OutboundPeerRequestState.ACCEPTED_PROGRESS),
        Step("response_terminal", (CORRELATION, PeerTerminalDisposition.FAILED),
             lambda view: view.state is None),
        Step("request_sent", (CORRELATION, "peer")),
        Step("request_timed_out", (CORRELATION,), lambda view: view.state is None),
        Step("request_sent", (CORRELATION, "peer")),
        Step("response_terminal", (CORRELATION, PeerTerminalDisposition.COMPLETED),
             lambda view: view.state is None),
        Step("request_received", (CORRELATION,)),
        Step("inbound_state", (CORRELATION,), InboundPeerRequestState.RECEIVED),
        Step("response_replied", (CORRELATION,)),
        Step("inbound_state", (CORRELATION,), None),
    ]),
    "streams": (InteractionStreamHandle, [
        Step("state", (CORRELATION,), None),
        Step("reserved", (CORRELATION,)),
        Step("state", (CORRELATION,), InteractionStreamState.RESERVED),
        Step("expired", (CORRELATION,), lambda view: view.state is None),
        Step("reserved", (CORRELATION,)),
        Step("attached", (CORRELATION,)),
        Step("completed", (CORRELATION,)),
        Step("reserved", (CORRELATION,)),
        Step("attached", (CORRELATION,)),
        Step("closed_early", (CORRELATION,), lambda view: view.state is None),
    ]),
    "a lease": (AuthLeaseHandle, [
        Step("snapshot", (KEY,), lambda view: view.phase is None),
        Step("restore_auth_lifecycle_snapshot", (KEY, LEASED, 100), lambda v: v.generation == 1),
        Step("acquire_lease", (KEY, 100), lambda done: isinstance(done, AuthLeaseTransition)
             and done.generation == 2 and done.credential_published_at_millis),
        Step("mark_expiring", (KEY,), lambda view: view.phase == "Expiring"),
        Step("begin_refresh", (KEY,), lambda view: view.phase == "Refreshing"),
        Step("refresh_failed", (KEY, False), lambda view: view.phase == "Expiring"),
        Step("begin_refresh", (KEY,)),
        Step("complete_refresh", (KEY, 200, 90), lambda done: done.generation == 3),
        Step("mark_reauth_required", (KEY,), lambda view: view.phase == "ReauthRequired"),
        Step("snapshot", (KEY,), lambda view: view.phase is AuthLeasePhase.REAUTH_REQUIRED),
        Step("release_lease", (KEY,), lambda view: view.phase is None
             and "Released" in [e.fields.get("new_state") for e in view.effects]),
        Step("acquire_lease", (KEY, 100)),
        Step("release_credential_lifecycle", (KEY,), lambda view: not view.credential_present),
        Step("request_credential", (KEY,), lambda view: view.phase is None),
    ]),
}  # fmt: skip
