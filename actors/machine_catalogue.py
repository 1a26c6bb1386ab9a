"""Every state machine of Rookery by its name, with a small world in which it can be explored.

It is for tools and tests that need all machines: traces, diagrams, exploration, tables, benches. It
imports every machine; no decider imports it. A small world consists of a few values per parameter,
the hosts a session may have, and limits for counters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.admission.session_claim_machine import CLAIM
from rookery.actors.approvals.lifecycle_machine import APPROVALS
from rookery.actors.kernel.machines import (
    ATTACHED,
    RUNNING,
    STOPPED,
    HostPhase,
    Machine,
    SessionHost,
)
from rookery.actors.leases.lease_machine import LEASE
from rookery.actors.peers.context_machine import CONTEXT
from rookery.actors.peers.drain_machine import DRAIN
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.actors.peers.interaction_machine import INBOUND, OUTBOUND
from rookery.actors.peers.stream_machine import STREAMS
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS
from rookery.actors.surfaces.state import Surfaces
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.actors.turns import Turn
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING
from rookery.actors.turns.realtime_turn_machine import PRODUCT_TURN
from rookery.actors.turns.slot_machine import SLOT
from rookery.actors.turns.turn_machine import TURN

__all__ = ["MACHINE_CATALOGUE", "MachineEntry", "Pools", "candidate", "candidates", "observed_turn"]

Pools = Mapping[str, tuple[Any, ...]]
"""Values of a parameter by its name, or by ``input.parameter`` for one input only."""

FLAG: Final = (False, True)
FREE: Final = {
    phase: SessionHost(phase=phase, session_id="s") for phase in HostPhase if phase is not RUNNING
}
BUSY: Final = SessionHost(
    phase=RUNNING, session_id="s", current_run_id="run-1", pre_run_phase=ATTACHED
)
NOTHING_ELSE: Final[Mapping[str, Pools]] = {}
NOT_REGISTERED: Final = SessionHost(phase=ATTACHED)
EVERY_PHASE: Final = (SessionHost(), *list(FREE.values())[1:], BUSY)
HOSTS: Final = (*EVERY_PHASE, NOT_REGISTERED)


class MachineEntry(NamedTuple):
    """A machine and its small world."""

    machine: Machine[Any]
    pools: Pools
    hosts: tuple[SessionHost, ...] = ()
    """The session hosts between two inputs; empty if no host matters."""
    companions: tuple[Machine[Any], ...] = ()
    """Machines that change the same state; the pools apply to them too."""
    observed: Mapping[str, Pools] = NOTHING_ELSE
    """What an input reads elsewhere, beside its parameters."""
    within: Callable[[Any], bool] = lambda _: True
    """Whether a state belongs to the small world."""


# --- what machines look at elsewhere ------------------------------------------------------------


def observed_turn(machine: Machine[Any], on: str, turn: Turn) -> dict[str, Any]:
    """The part of the session's turn that an input of ``machine`` reads."""
    if machine is not ADMISSION or on != "fail_run":
        return {}
    cause = turn.terminal_cause_kind
    return {"turn_phase": turn.phase, "terminal_cause_kind": cause and cause.variant}


# --- every input there is -----------------------------------------------------------------------


def candidate(
    machine: Machine[Any], on: str, params: Mapping[str, Any], seen: Mapping[str, Any]
) -> Any:
    """The fact that ``on`` would leave, with what it read elsewhere."""
    made = machine.candidate(on, params)
    return replace(made, **seen) if seen else made


def candidates(entry: MachineEntry, machine: Machine[Any], on: str) -> list[Any]:
    """All candidate facts of the small world."""
    names = machine.inputs[on].params
    values = (entry.pools.get(f"{on}.{name}", entry.pools.get(name, ())) for name in names)
    seen = entry.observed.get(on, {})
    return [
        candidate(
            machine,
            on,
            dict(zip(names, combination, strict=True)),
            dict(zip(seen, looked_at, strict=True)),
        )
        for combination in itertools.product(*values)
        for looked_at in itertools.product(*seen.values())
    ]


# --- the small worlds ---------------------------------------------------------------------------

_HOST_INPUTS: Pools = {
    "session_id_in": ("s", "other"),
    "agent_runtime_id": ("runtime",),
    "fence_token": (7,),
    "generation": (1,),
    "intents": ((), ("quiet",)),
    "reason": ("because",),
    "run_id": ("run-1", "run-2"),
    "runtime_id": ("runtime",),
    "work_id": ("work",),
    "origin": ("External",),
    "input_id": ("input-1",),
    "immediate": FLAG,
    "interrupt_yielding": FLAG,
    "wake_if_idle": FLAG,
}
_FAILED_TURNS: Mapping[str, Pools] = {
    "fail_run": {
        "turn_phase": ("CallingLlm", "Failed"),
        "terminal_cause_kind": (None, "LlmFailure"),
    }
}
_OF_HOST: Mapping[str, Any] = {"pools": _HOST_INPUTS, "observed": _FAILED_TURNS}
_LOGIN: Pools = {
    "expires_at_ts": (None, 100),
    "new_expires_at": (None, 50, 100),
    "now_ts": (50,),
    "flow_id": ("f",),
    "provider": ("p", "q"),
    "redirect_uri": ("u", "v"),
    "expires_at_millis": (10,),
    "max_outstanding_flows": (0, 2),
    "now_millis": (10, 11),
    "observe_credential_freshness.now_ts": (39, 41, 100),
    "refresh_window_secs": (60,),
}
_SURFACE: Pools = {
    "surface_id": ("s",),
    "now_ms": (1_000,),
    "staged_seq": (0, 1, 2, 3),
    "applied_at_turn": (1,),
    "task_seq": (0, 1, 2),
    "lineage_seq": (0, 1, 2, 3),
    "cause": ("PendingFailed",),
    "epoch": (1,),
}
_TURN: Pools = {
    "run_id": ("run-1",),
    "start_conversation_run.primitive_kind_in": ("ConversationTurn", "ImmediateAppend"),
    "shape": ("Conversation",),
    "vision": (True,),
    "image_results": (False,),
    "start_conversation_run.max_retries": (1,),
    "max_retries": (0, 1),
    "tool_count": (0, 1),
    "op_refs": (("a",),),
    "barrier_ids": ((), ("a",)),
    "operation_ids": ((), ("a",)),
    "error": ("broken",),
    "failure_kind": ("RateLimited",),
    "retry_attempt": (0, 1),
    "selected_delay_ms": (700,),
    "cause_kind": ("Unknown", "LlmFailure"),
    "outcome": ("Failed",),
    "apply_cause": (None,),
    "apply_message": (None,),
}
_DISPOSITION: Pools = {
    "execution_kind_present": FLAG,
    "execution_kind": ("ContentTurn", "ResumePending"),
    "prompt_trimmed_text_byte_count": (0, 3),
    "prompt_non_text_block_count": (0, 1),
    "pending_continuation": ("RunPending", "NoPendingBoundary"),
    "keep_alive_request": ("Enable", "Disable", "Preserve"),
}
_ENVELOPE: Pools = {
    "item_id": ("item",),
    "from_peer": ("sender",),
    "envelope_kind": ("Message", "Request", "Lifecycle", "Response", "Ack"),
    "request_intent": (
        *(None, "ask", "quiet", "supervisor.bridge"),
        *("mob.peer_added", "mob.peer_retired", "mob.peer_unwired"),
    ),
    "lifecycle_kind": (None, "PeerAdded", "PeerRetired", "PeerUnwired"),
    "lifecycle_peer_param": (None, "named"),
    "response_status": (None, "Accepted", "Completed", "Failed"),
    "in_reply_to": ("request",),
    "source_name": ("webhook",),
    "keep_alive": FLAG,
}
_APPROVAL: Pools = {
    "approval_id": ("a",),
    "approve_ok": FLAG,
    "deny_ok": FLAG,
    "expiry": FLAG,
    "expired": FLAG,
    "status": ("Pending", "Approved", "Denied", "Expired", "Cancelled"),
    "restore_approval.decision": (None, "Approve", "Deny"),
    "decision": ("Approve", "Deny"),
}
_PROJECTION: Pools = dict.fromkeys(("advanced_at_ms", "observed_ms", "baseline_ms"), (0, 1, 2))
_REQUEST: Pools = {
    "corr_id": ("a", "b"),
    "dest": ("peer",),
    "disposition": ("Completed", "Failed"),
    "reason": ("gone",),
}


def _few_steps(turn: Turn) -> bool:
    return turn.boundary_count + turn.extraction_attempts < 2


def _few_changes(surfaces: Surfaces) -> bool:
    return surfaces.next_staged_intent_sequence <= 3 and surfaces.inflight_calls.get("s", 0) <= 1


_SILENT: Final = frozenset(["quiet", "supervisor.bridge"])
_HUSHED: Final = (
    replace(FREE[ATTACHED], silent_intents=_SILENT),
    replace(BUSY, silent_intents=_SILENT),
)

MACHINE_CATALOGUE: Final[Mapping[str, MachineEntry]] = {
    entry.machine.name: entry
    for entry in (
        MachineEntry(LIFECYCLE, companions=(ADMISSION,), **_OF_HOST),
        MachineEntry(ADMISSION, companions=(LIFECYCLE,), **_OF_HOST),
        MachineEntry(
            TURN, _TURN, (SessionHost(), FREE[ATTACHED], FREE[STOPPED], BUSY), within=_few_steps
        ),
        MachineEntry(SLOT, _DISPOSITION),
        MachineEntry(PRODUCT_TURN, _PROJECTION, EVERY_PHASE),
        MachineEntry(
            MODEL_ROUTING,
            {"model": ("one", "other"), "realtime_capable": FLAG},
            HOSTS,
            within=lambda routing: routing.topology_epoch < 3,
        ),
        MachineEntry(SURFACES, _SURFACE, EVERY_PHASE, within=_few_changes),
        MachineEntry(MCP_SERVERS, {"server_id": ("a", "b"), "error": ("broken",)}, HOSTS),
        MachineEntry(LEASE, _LOGIN, within=lambda lease: lease.refresh_attempt < 3),
        MachineEntry(INGRESS, _ENVELOPE, (*HOSTS, *_HUSHED)),
        MachineEntry(OUTBOUND, _REQUEST, EVERY_PHASE),
        MachineEntry(INBOUND, _REQUEST, EVERY_PHASE),
        MachineEntry(STREAMS, _REQUEST, EVERY_PHASE),
        MachineEntry(
            DRAIN,
            {
                "mode": ("Timed", "AttachedSession", "PersistentHost"),
                "reason": ("IdleTimeout", "Dismissed", "Failed", "Aborted", "SessionShutdown"),
            },
            HOSTS,
        ),
        MachineEntry(CONTEXT, {"updated_at_ms": (0, 1, 2)}, EVERY_PHASE),
        MachineEntry(APPROVALS, _APPROVAL),
        MachineEntry(CLAIM, {"session_id": ("s", "other")}),
    )
}
"""By the names of ``machines.json``."""
