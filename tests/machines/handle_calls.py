"""Every method of every handle with arguments, and a shadow that shows what each is to do."""

from __future__ import annotations

import random
from typing import Any

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.handle import SessionAdmissionHandle
from rookery.actors.kernel.machines.machine import (
    Edition,
    Machine,
    RejectionKind,
    TransitionRejected,
)
from rookery.actors.kernel.machines.session_host import (
    SessionHost,
    host_of,
    with_host,
)
from rookery.actors.peers.context_machine import CONTEXT
from rookery.actors.peers.drain_machine import DRAIN
from rookery.actors.peers.handles_exchange import InteractionStreamHandle, PeerInteractionHandle
from rookery.actors.peers.handles_session import (
    CommsDrainHandle,
    PeerCommsHandle,
    SessionContextHandle,
)
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.actors.peers.interaction_machine import INBOUND, OUTBOUND
from rookery.actors.peers.stream_machine import STREAMS
from rookery.actors.surfaces.handle import ExternalToolSurfaceHandle, McpServerLifecycleHandle
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.actors.turns.failure import failure_of_cause
from rookery.actors.turns.handle import TurnStateHandle
from rookery.actors.turns.handles_realtime import ModelRoutingHandle, RealtimeProductTurnHandle
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING
from rookery.actors.turns.realtime_turn_machine import PRODUCT_TURN
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerIngressEnvelopeFacts,
    PeerIngressMessage,
    PeerIngressPlainEventFacts,
    PeerTerminalDisposition,
)
from rookery.schemas.machines.surface import ExternalToolSurfaceFailureCause as FailureCause
from rookery.schemas.machines.turn import (
    AsyncOpRef,
    ContentShape,
    LlmRetryFailure,
    LlmRetryFailureKind,
    LlmRetryPlan,
    LlmRetrySchedule,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
    WaitPolicy,
)
from rookery.schemas.seed.ingress import InputSource

RUN, OTHER_RUN, OP, CORRELATION = (f"01890000-0000-7000-8000-00000000000{n}" for n in range(4))
CONVERSATION = (
    *(TurnPrimitiveKind.CONVERSATION_TURN, ContentShape.CONVERSATION),
    *(True, False, 1),
)
BROKEN = failure_of_cause(TurnTerminalCauseKind.LLM_FAILURE, "broken")
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


Call = tuple[type[Any], str, tuple[Any, ...], Machine[Any], str, dict[str, Any]]
"""A method with arguments, and the input by the model's names that it stands for."""

turn, admission, surface = TurnStateHandle, SessionAdmissionHandle, ExternalToolSurfaceHandle
product, peers, stream = RealtimeProductTurnHandle, PeerInteractionHandle, InteractionStreamHandle

PLAIN: list[tuple[type[Any], Machine[Any], str, tuple[str, ...]]] = [
    *((turn, TURN, on, ()) for on, asked in TURN.inputs.items() if not asked.params),
    *((product, PRODUCT_TURN, on, ()) for on, a in PRODUCT_TURN.inputs.items() if not a.params),
    *((surface, SURFACES, on, ("s",)) for on in ("register", "call_started", "call_finished")),
    *((surface, SURFACES, on, ("s",)) for on in SURFACES.inputs if on.startswith("finalize")),
    (surface, SURFACES, "shutdown_surface", ()),
    *((CommsDrainHandle, DRAIN, on, ()) for on, a in DRAIN.inputs.items() if not a.params),
    *((stream, STREAMS, on, (CORRELATION,)) for on in [*STREAMS.inputs][:-1]),
    *((peers, INBOUND, on, (CORRELATION,)) for on in INBOUND.inputs),
    *((peers, OUTBOUND, o, (CORRELATION,)) for o in ("response_progress", "request_timed_out")),
    *(
        (McpServerLifecycleHandle, MCP_SERVERS, on, ("server",))
        for on in MCP_SERVERS.inputs
        if on != "apply_failed"
    ),
    (admission, ADMISSION, "recycle", ()),
    (admission, ADMISSION, "accept_without_wake", ("i",)),
    (admission, ADMISSION, "prepare", (RUN,)),
    (admission, ADMISSION, "commit", ("i", RUN)),
    (turn, TURN, "start_immediate_append", (RUN,)),
    (turn, TURN, "start_immediate_context", (OTHER_RUN,)),
    (turn, TURN, "enter_extraction", (1,)),
    (turn, TURN, "llm_returned_tool_calls", (0,)),
    (turn, TURN, "llm_returned_tool_calls", (2,)),
    (turn, TURN, "extraction_validation_failed", ("broken",)),
    (turn, TURN, "extraction_failed", ("broken",)),
    (turn, TURN, "retry_requested", (1,)),
    (turn, TURN, "acknowledge_terminal", (TurnTerminalOutcome.COMPLETED,)),
    (turn, TURN, "ops_barrier_satisfied", ({OP},)),
    (product, PRODUCT_TURN, "projection_advance_observed", (2,)),
    (product, PRODUCT_TURN, "projection_refreshed", (1,)),
    (product, PRODUCT_TURN, "projection_reset", (3,)),
    (surface, SURFACES, "stage_add", ("s", 1)),
    (surface, SURFACES, "stage_remove", ("s", 1)),
    (surface, SURFACES, "stage_reload", ("s", 1)),
    *((surface, SURFACES, "apply_boundary", ("s", 1, seq, 1)) for seq in range(1, 9)),
    *(
        (surface, SURFACES, "mark_pending_succeeded", ("s", n, m))
        for n in (1, 2, 3)
        for m in range(1, 9)
    ),
    (surface, SURFACES, "mark_pending_failed", ("s", 1, 1, FailureCause.PENDING_FAILED)),
    (surface, SURFACES, "snapshot_aligned", (1,)),
    (McpServerLifecycleHandle, MCP_SERVERS, "apply_failed", ("server", "broken")),
    (peers, OUTBOUND, "request_sent", (CORRELATION, "peer")),
    *(
        (peers, OUTBOUND, "response_terminal", (CORRELATION, end))
        for end in PeerTerminalDisposition
    ),
    *((CommsDrainHandle, DRAIN, "spawn_drain", (mode,)) for mode in DrainMode),
    (CommsDrainHandle, DRAIN, "notify_drain_exited", (DrainExitReason.FAILED,)),
    (SessionContextHandle, CONTEXT, "context_advanced", (5,)),
    (ModelRoutingHandle, MODEL_ROUTING, "set_baseline", ("model", True)),
    (PeerCommsHandle, INGRESS, "set_peer_ingress_context", (True,)),
]
_start = dict(zip(TURN.inputs["start_conversation_run"].params, (RUN, *CONVERSATION), strict=True))
_failed = {"failure_kind": "rate_limited", "retry_attempt": 1, "max_retries": 3}
_failed |= {"selected_delay_ms": 700, "error": "too often"}
_fatal = {"cause_kind": "llm_failure", "error": "broken"}
_ops = ({AsyncOpRef(OP, WaitPolicy.DETACHED)}, {OP})
_work = {"runtime_id": "r", "work_id": "w", "origin": "External"}
_classified = {"item_id": "i", "from_peer": "Ann", "envelope_kind": "Message"}
_accepted = {"input_id": "i", "immediate": False, "interrupt_yielding": False}
OTHERS: list[Call] = [
    (turn, "start_conversation_run", (RUN, *CONVERSATION), TURN,
     "start_conversation_run", _start),
    (turn, "recoverable_failure", (RETRY,), TURN, "recoverable_failure", _failed),
    (turn, "fatal_failure", (BROKEN,), TURN, "fatal_failure", _fatal),
    (turn, "register_pending_ops", _ops, TURN, "register_pending_ops",
     {"op_refs": [OP], "barrier_ids": [OP]}),
    (admission, "ingest", ("r", "w", InputSource.TCP), ADMISSION, "ingest", _work),
    (admission, "accept_with_completion", ("i", False, False, True), ADMISSION,
     "accept_with_completion", {**_accepted, "wake_if_idle": True}),
    (PeerCommsHandle, "classify_external_envelope", (ENVELOPE,), INGRESS,
     "classify_external_envelope", _classified),
    (PeerCommsHandle, "classify_plain_event", (PeerIngressPlainEventFacts(source_name="web"),),
     INGRESS, "classify_plain_event", {"source_name": "web"}),
]  # fmt: skip
CALLS: list[Call] = [
    *(
        (kind, on, args, machine, on, dict(zip(machine.inputs[on].params, args, strict=True)))
        for kind, machine, on, args in PLAIN
        if hasattr(kind, on)
    ),
    *OTHERS,
]
METHODS = [*dict.fromkeys(call[:2] for call in CALLS)]
ENDS = ("run_completed", "run_failed", "run_cancelled")
"""What follows from these beside their row has tests of its own."""
LOOKS = ("snapshot", "apply_surface_input")
UNREACHABLE = "force_cancel_no_run"
SELDOM = {
    *("commit", "recycle", "shutdown_surface", "callback_pending", "cancel_now"),
    *("fatal_failure", "turn_limit_reached", "budget_exhausted", "time_budget_exceeded"),
    *("stage_add", "stage_reload"),
}
"""These end what goes on, or start it anew."""


class Shadow:
    """The same machines, each asked by itself, with the host carried from one to the other."""

    def __init__(self, host: SessionHost, edition: Edition) -> None:
        self.host, self.edition = host, edition
        self.states: dict[str, Any] = {}

    def state(self, machine: Machine[Any]) -> Any:
        return with_host(self.states.get(machine.name, machine.initial), self.host)

    def takes(self, machine: Machine[Any], on: str, params: dict[str, Any]) -> bool:
        return not isinstance(self._decided(machine, on, params), RejectionKind)

    def _decided(self, machine: Machine[Any], on: str, params: dict[str, Any]) -> Any:
        draft = machine.candidate(on, params)
        try:
            return machine.decide(self.state(machine), on, draft, edition=self.edition)
        except TransitionRejected as rejected:
            return rejected.kind

    def ask(self, machine: Machine[Any], on: str, params: dict[str, Any]) -> RejectionKind | None:
        state, fact = self.state(machine), self._decided(machine, on, params)
        if isinstance(fact, RejectionKind):
            return fact
        self.states[machine.name] = after = machine.evolve(state, fact)
        self.host = host_of(after) or self.host
        return None


def likely_call(rng: random.Random, shadow: Shadow, accepted: set[Any]) -> Call:
    """Most of the time one that is taken, new ones first, and some of them seldom."""
    methods = rng.sample(METHODS, len(METHODS))
    if rng.random() < 0.1:
        return rng.choice([call for call in CALLS if call[:2] == methods[0]])
    methods = [method for method in methods if method[1] not in SELDOM or rng.random() < 0.05]
    methods.sort(key=lambda method: method in accepted)
    taken = (c for m in methods for c in CALLS if c[:2] == m and shadow.takes(*c[3:]))
    return next(taken, CALLS[0])
