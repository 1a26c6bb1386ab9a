"""Who sends each input of each machine, beside the roles that may send its verb: one table.

Deciders refuse by it, and the AsyncAPI document, the discovery of a node and
``ops/machines/tables.md`` print it. To reserve an input, change its line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["MACHINE_INPUTS", "InputSender", "MachineInputs", "inputs_of_verb", "sender_of"]


class InputSender(StrEnum):
    """Whose word an input is."""

    CLIENT = "client"
    """A client, at any time."""
    DRIVER = "driver"
    """The driver of the session's run: a client may not send it while a node drives that run."""
    OPERATOR = "operator"
    """An operator between two runs: a client may not send it while a node drives a run."""
    EXECUTOR = "executor"
    """The executor of the machine's effects: a client may not send it where a node is that."""
    TIMER = "timer"
    """A timer, where a node is the executor; there a client may not send it."""
    CREATOR = "creator"
    """The creator of an approval: a client may not send it for approvals of calls, which nodes
    create and answers decide."""


CLIENT, DRIVER, OPERATOR, EXECUTOR, TIMER, CREATOR = InputSender


class MachineInputs(NamedTuple):
    """The inputs of one machine."""

    verb: str
    """The verb that carries them; empty for a machine that no command reaches."""
    senders: Mapping[str, InputSender]


def _inputs(verb: str, senders: Mapping[InputSender, str]) -> MachineInputs:
    by_input = {on: sender for sender, inputs in senders.items() for on in inputs.split()}
    return MachineInputs(verb, MappingProxyType(by_input))


MACHINE_INPUTS: Final[Mapping[str, MachineInputs]] = MappingProxyType(
    {
        "session_lifecycle": _inputs(
            "admission",
            {
                CLIENT: "Initialize RegisterSession PrepareBindings EnsureSessionWithExecutor "
                "SetSilentIntents Recover InterruptCurrentRun CancelAfterBoundary",
                DRIVER: "DrainQueuedRun",
                OPERATOR: "Retire Reset UnregisterSession StopRuntimeExecutor "
                "RuntimeExecutorExited Destroy",
            },
        ),
        "session_admission": _inputs(
            "admission",
            {
                CLIENT: "ingest accept_with_completion accept_without_wake",
                DRIVER: "prepare commit fail_run rollback_run",
                OPERATOR: "recycle",
            },
        ),
        "turn_execution": _inputs(
            "turns",
            {
                CLIENT: "cancel_now request_cancel_after_boundary",
                DRIVER: "start_conversation_run start_immediate_append start_immediate_context "
                "primitive_applied llm_returned_tool_calls llm_returned_terminal "
                "register_pending_ops tool_calls_resolved ops_barrier_satisfied boundary_continue "
                "boundary_complete enter_extraction extraction_start extraction_validation_passed "
                "extraction_validation_failed extraction_failed recoverable_failure fatal_failure "
                "retry_requested cancellation_observed acknowledge_terminal turn_limit_reached "
                "budget_exhausted time_budget_exceeded force_cancel_no_run run_completed "
                "run_failed run_cancelled callback_pending",
            },
        ),
        "session_turn_admission": _inputs(
            "turns",
            {
                DRIVER: "project_turn_admission claim_turn abort_claim begin_turn resolve_turn "
                "finalize_turn request_interrupt request_shutdown "
                "resolve_pending_admission_drained authorize_session_teardown "
                "authorize_cancel_after_boundary authorize_start_turn_dispatch "
                "resolve_start_turn_disposition resolve_runtime_keep_alive "
                "resolve_last_start_turn_public_terminal",
            },
        ),
        "realtime_product_turn": _inputs(
            "turns",
            {
                CLIENT: "turn_in_flight turn_committed output_started turn_interrupted "
                "turn_terminal projection_advance_observed projection_refreshed projection_reset "
                "classify_client_input_submitted classify_mid_turn_activity "
                "classify_turn_terminated",
            },
        ),
        "model_routing": _inputs("turns", {CLIENT: "set_baseline"}),
        "external_tool_surface": _inputs(
            "surfaces",
            {
                CLIENT: "register stage_add stage_remove stage_reload",
                EXECUTOR: "apply_boundary mark_pending_succeeded mark_pending_failed call_started "
                "call_finished finalize_removal_clean snapshot_aligned shutdown_surface",
                TIMER: "finalize_removal_forced",
            },
        ),
        "mcp_server_lifecycle": _inputs(
            "surfaces",
            {
                CLIENT: "apply_reload",
                EXECUTOR: "apply_connect_pending apply_connected apply_failed apply_disconnected",
            },
        ),
        "auth_lease": _inputs(
            "leases",
            {
                CLIENT: "release clear_credential_lifecycle release_lease "
                "release_credential_lifecycle restore_auth_lifecycle_snapshot request_credential",
                EXECUTOR: "acquire_lease begin_refresh complete_refresh refresh_failed "
                "refresh_failed_transient refresh_failed_permanent mark_reauth_required "
                "undo_release admit_oauth_browser_flow verify_oauth_browser_flow "
                "consume_oauth_browser_flow admit_oauth_device_flow verify_oauth_device_flow "
                "begin_oauth_device_poll finish_oauth_device_poll consume_oauth_device_flow",
                TIMER: "mark_expiring observe_credential_freshness expire_oauth_browser_flow "
                "expire_oauth_device_flow",
            },
        ),
        "peer_ingress": _inputs(
            "peers",
            {
                CLIENT: "set_peer_ingress_context",
                EXECUTOR: "classify_external_envelope classify_plain_event",
            },
        ),
        "peer_interaction_outbound": _inputs(
            "peers",
            {
                EXECUTOR: "request_sent response_progress response_terminal request_send_failed "
                "response_rejected",
                TIMER: "request_timed_out",
            },
        ),
        "peer_interaction_inbound": _inputs(
            "peers", {EXECUTOR: "request_received response_replied"}
        ),
        "interaction_stream": _inputs(
            "peers",
            {
                CLIENT: "attached closed_early",
                EXECUTOR: "reserved completed abandoned",
                TIMER: "expired",
            },
        ),
        "comms_drain": _inputs(
            "peers",
            {
                CLIENT: "ensure_drain_running stop_drain",
                EXECUTOR: "spawn_drain drain_exited_clean drain_exited_respawnable "
                "notify_drain_exited",
            },
        ),
        "session_context": _inputs("peers", {EXECUTOR: "context_advanced"}),
        "approval_lifecycle": _inputs(
            "approvals",
            {CREATOR: "create_approval restore_approval observe_approval_expiry decide_approval"},
        ),
        "session_claim": _inputs("", {EXECUTOR: "try_acquire release"}),
    }
)
"""By the names of the machine catalogue; with the methods of leases, which no machine has."""

_SENDERS: Final = MappingProxyType(
    {
        (each.verb, on): sender
        for each in MACHINE_INPUTS.values()
        for on, sender in each.senders.items()
    }
)


def sender_of(verb: str, on: str) -> InputSender:
    """Who sends an input of a verb; for one that no machine has, the machine's own refusal."""
    return _SENDERS.get((verb, on), CLIENT)


def inputs_of_verb(verb: str) -> dict[str, list[str]]:
    """The inputs of a verb by their senders; empty for a verb without machines."""
    found: dict[str, list[str]] = {}
    for (carrier, on), sender in _SENDERS.items():
        if carrier == verb:
            found.setdefault(sender.value, []).append(on)
    return found
