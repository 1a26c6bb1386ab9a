"""Every handle method as a command: decided by an actor, answered with the machine's view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rookery.schemas.facts import session as session_facts
from tests.kernel.machines.machine_world import START, MachineWorld

RUN, OTHER_RUN, OP = (f"01890000-0000-7000-8000-00000000000{n}" for n in range(3))
LEASE = "dev.eu:github:work"


@pytest.fixture
def realm() -> Iterator[MachineWorld]:
    with MachineWorld() as made:
        yield made


@pytest.fixture
def session(realm: MachineWorld) -> MachineWorld:
    realm.open()
    return realm


def start(realm: MachineWorld, run_id: str = RUN, **more: Any) -> dict[str, Any]:
    return realm.state("turns", "start_conversation_run", run_id=run_id, **START, **more)


# --- answers --------------------------------------------------------------------------------------


def test_a_turn_by_commands_from_its_start_to_its_end(session: MachineWorld) -> None:
    session.state("admission", "prepare", run_id=RUN)
    started = start(session)
    assert started["turn_phase"] == "ApplyingPrimitive"
    assert started["active_run_id"] == RUN
    assert started["effects"] == [{"name": "TurnRunStarted", "fields": {"run_id": RUN}}]
    for on, params, phase in (
        ("primitive_applied", {}, "CallingLlm"),
        ("llm_returned_tool_calls", {"tool_count": 1}, "WaitingForOps"),
        ("register_pending_ops", {"op_refs": [OP], "barrier_ids": [OP]}, "WaitingForOps"),
        ("ops_barrier_satisfied", {"operation_ids": [OP]}, "WaitingForOps"),
        ("tool_calls_resolved", {}, "DrainingBoundary"),
        ("boundary_continue", {}, "CallingLlm"),
        ("llm_returned_terminal", {}, "DrainingBoundary"),
        ("boundary_complete", {}, "Completed"),
        ("run_completed", {"run_id": RUN}, "Completed"),
    ):
        assert session.state("turns", on, **params)["turn_phase"] == phase
    session.state("admission", "commit", run_id=RUN, input_id="i")
    facts = session.facts_of("turn")
    assert {fact.run for fact in facts} == {RUN}
    assert {fact.generation for fact in facts} == {1}
    assert not facts[0].direct
    assert session.refused("turns", "primitive_applied")["code"] == "GUARD_REJECTED"


def test_a_rejection_names_input_and_reason_and_leaves_no_fact(session: MachineWorld) -> None:
    error = session.refused("turns", "boundary_continue")
    reason = "guard rejected transition from phase Attached for boundary_continue"
    assert error == {
        "code": "GUARD_REJECTED",
        "message": f"DSL transition rejected in TurnStateHandle::boundary_continue: {reason}",
        "hint": None,
        "span": None,
        "kind": "GuardRejected",
        "context": "TurnStateHandle::boundary_continue",
        "reason": reason,
    }
    unknown = session.refused("leases", "mark_expiring", key=LEASE)
    assert (unknown["code"], unknown["kind"]) == (
        "NO_MATCHING_TRANSITION",
        "NoMatchingTransition",
    )
    assert unknown["reason"] == f"no auth lease registered for lease_key `{LEASE}`"
    assert session.facts_of("turn") == []
    assert session.facts_of("lease", LEASE) == []


@pytest.mark.parametrize(
    ("verb", "on", "params", "code"),
    [
        ("turns", "dance", {}, "NO_MATCHING_TRANSITION"),
        ("turns", "primitive_applied", {"hats": 1}, "UNKNOWN_FIELD"),
        ("turns", "snapshot", {"hats": 1}, "UNKNOWN_FIELD"),
        ("turns", "llm_returned_tool_calls", {}, "INVALID_ARGUMENT"),
        ("turns", "llm_returned_tool_calls", {"tool_count": -1}, "INVALID_ARGUMENT"),
        ("turns", "llm_returned_tool_calls", {"tool_count": "1"}, "INVALID_ARGUMENT"),
        ("turns", "primitive_applied", {"direct": True}, "UNKNOWN_FIELD"),
        ("surfaces", "commit", {}, "NO_MATCHING_TRANSITION"),
        ("approvals", "decide_approval", {"approval_id": 7}, "INVALID_ARGUMENT"),
        ("peers", "spawn_drain", {"mode": "Sometimes"}, "INVALID_ARGUMENT"),
        ("leases", "refresh_failed", {}, "INVALID_ARGUMENT"),
        ("leases", "release_lease", {"hats": 1}, "UNKNOWN_FIELD"),
        ("leases", "restore_auth_lifecycle_snapshot",
         {"snapshot": {"generation": 2**70}}, "INVALID_ARGUMENT"),
    ],
)  # fmt: skip
def test_an_unknown_input_is_refused_by_code(
    session: MachineWorld, verb: str, on: str, params: dict[str, Any], code: str
) -> None:
    key = LEASE if verb == "leases" else "s"
    assert session.refused(verb, on, key=key, **params)["code"] == code


@pytest.mark.parametrize(
    ("verb", "key"),
    [("turns", "not.a.session"), ("leases", "realm"), ("leases", "a:b:c:d")],
)
def test_a_key_no_entity_can_have_is_refused(session: MachineWorld, verb: str, key: str) -> None:
    assert session.refused(verb, "snapshot", key=key)["code"] in (
        "INVALID_SESSION_ID",
        "INVALID_ARGUMENT",
    )


def test_reading_leaves_no_fact_and_gets_the_same_view(session: MachineWorld) -> None:
    started = start(session)
    looked = session.state("turns", "snapshot")
    assert looked == {**started, "effects": []}
    for verb, on, params in (
        ("turns", "current_phase", {}),
        ("surfaces", "surface_snapshot", {"surface_id": "x"}),
        ("surfaces", "pending_server_ids", {}),
        ("peers", "outbound_state", {"corr_id": "c"}),
        ("peers", "current_watermark_ms", {}),
    ):
        assert session.state(verb, on, **params)["effects"] == []
    assert session.state("leases", "snapshot", key=LEASE)["generation"] == 0
    assert len(session.facts_of("turn")) == 1
    assert not session.facts_of("surface") + session.facts_of("peer")


def test_a_surface_is_read_alone_as_the_seed_has_it(session: MachineWorld) -> None:
    session.state("surfaces", "register", surface_id="desk")
    session.state("surfaces", "stage_add", surface_id="desk", now_ms=1)
    read = session.state("surfaces", "surface_snapshot", surface_id="desk")["surface"]
    assert (read["surface_id"], read["staged_op"]) == ("desk", "Add")
    assert session.state("surfaces", "surface_snapshot", surface_id="unknown")["surface"] is None


# --- repeats --------------------------------------------------------------------------------------


def test_a_repeated_command_changes_nothing_and_gets_no_effects(
    session: MachineWorld,
) -> None:
    first = session.state("peers", "request_sent", id_="once", corr_id="c", dest="peer")
    assert [effect["name"] for effect in first["effects"]] == ["PeerInteractionStateChanged"]
    again = session.state("peers", "request_sent", id_="once", corr_id="c", dest="peer")
    assert again == {**first, "effects": None}
    session.forget()
    assert session.state("peers", "request_sent", id_="once", corr_id="c", dest="peer") == again
    assert len(session.facts_of("peer")) == 1
    reused = session.put("peers", "request_sent", id_="once", corr_id="d", dest="peer")
    assert reused.code == "IDEMPOTENCY_KEY_REUSED"


def test_the_same_input_under_another_id_is_another_input(session: MachineWorld) -> None:
    session.state("peers", "request_sent", corr_id="c", dest="peer")
    assert session.refused("peers", "request_sent", corr_id="c", dest="peer")["kind"] == (
        "GuardRejected"
    )


# --- the host -------------------------------------------------------------------------------------


def test_a_destroyed_session_refuses_turns_until_its_next_generation(
    session: MachineWorld,
) -> None:
    start(session)
    session.state("turns", "set_baseline", model="m", realtime_capable=True)
    session.state("admission", "Destroy")
    assert session.refused("turns", "primitive_applied")["reason"].startswith(
        "guard rejected transition from phase Destroyed"
    )
    assert session.refused("turns", "start_immediate_append", run_id=RUN)["kind"] == "GuardRejected"
    session.submit("run", "s", code="1")
    session.until(lambda: session.facts_of("session")[-1].generation == 2)
    for _ in range(2):
        assert session.state("turns", "snapshot")["turn_phase"] == "Ready"
        session.forget()
    run_id = session.facts_of("session")[-1].run
    assert start(session, run_id)["active_run_id"] == run_id
    assert session.facts_of("turn")[-1].generation == 2
    session.forget()
    assert session.state("turns", "snapshot")["active_run_id"] == run_id
    assert session.state("turns", "set_baseline", model="m", realtime_capable=True)[
        "topology_epoch"
    ] == 1  # fmt: skip


def test_an_unopened_session_accepts_inputs_that_need_no_session(realm: MachineWorld) -> None:
    assert realm.refused("surfaces", "register", surface_id="x")["kind"] == "GuardRejected"
    assert realm.refused("peers", "context_advanced", updated_at_ms=1)["kind"] == "GuardRejected"
    assert realm.state("turns", "turn_in_flight")["phase"] == "AwaitingProgress"
    realm.open()
    assert realm.state("turns", "current_phase")["phase"] == "AwaitingProgress"
    realm.state("surfaces", "register", surface_id="x")


FAILED = {"outcome": "failed", "cause_kind": "llm_failure", "error": "broken"}


@pytest.mark.parametrize(
    ("end", "params"),
    [("run_completed", {}), ("run_failed", FAILED), ("run_cancelled", {})],
)
def test_a_direct_run_has_the_session_until_its_end(
    session: MachineWorld, end: str, params: dict[str, str]
) -> None:
    start(session)
    assert session.facts_of("turn")[0].direct
    session.forget()
    assert session.state("turns", "primitive_applied")["active_run_id"] == RUN
    assert session.refused("turns", end, run_id=OTHER_RUN, **params)["kind"] == "GuardRejected"
    session.state("turns", end, run_id=RUN, **params)
    refusal = session.refused("turns", "acknowledge_terminal", outcome="completed")
    assert "from phase Attached" in refusal["reason"]
    assert start(session, OTHER_RUN)["active_run_id"] == OTHER_RUN


def test_a_prepared_run_waits_for_a_direct_one(session: MachineWorld) -> None:
    start(session)
    session.state("admission", "prepare", run_id=OTHER_RUN)
    assert session.state("turns", "snapshot")["active_run_id"] == RUN
    assert session.refused("turns", "start_immediate_append", run_id=OTHER_RUN)
    session.state("turns", "run_cancelled", run_id=RUN)
    session.forget()
    session.state("turns", "start_immediate_append", run_id=OTHER_RUN)
    assert not session.facts_of("turn")[-1].direct
    session.state("turns", "primitive_applied")
    session.state("admission", "commit", run_id=OTHER_RUN, input_id="i")


def test_a_start_is_decided_on_the_present_host_and_not_on_a_copy(
    session: MachineWorld,
) -> None:
    session.state("turns", "snapshot")
    session.write([session_facts.Destroyed(generation=1, row="Destroy", session_id_in="s")],
                  "session", "s")  # fmt: skip
    refusal = session.refused("turns", "start_immediate_append", run_id=RUN)
    assert "from phase Destroyed" in refusal["reason"]


def test_a_shutdown_of_surfaces_knows_the_present_host(session: MachineWorld) -> None:
    session.state("surfaces", "register", surface_id="x")
    session.write([session_facts.Retired(generation=1, row="Retire", session_id_in="s")],
                  "session", "s")  # fmt: skip
    refusal = session.refused("surfaces", "shutdown_surface")
    assert "from phase Retired" in refusal["reason"]


# --- each concern's own ---------------------------------------------------------------------------


def test_a_forbidden_call_is_answered_so(session: MachineWorld) -> None:
    told = session.state("surfaces", "call_started", surface_id="x")
    fields = {"surface_id": "x", "cause": "surface_unavailable"}
    assert told["effects"] == [{"name": "RejectSurfaceCall", "fields": fields}]


def test_surfaces_keep_the_phase_that_boundaries_and_jobs_set(session: MachineWorld) -> None:
    session.state("surfaces", "stage_add", surface_id="x", now_ms=1)
    session.state("surfaces", "apply_boundary", surface_id="x", now_ms=2, staged_seq=1,
                  applied_at_turn=1)  # fmt: skip
    done = session.state("surfaces", "mark_pending_succeeded", surface_id="x", task_seq=1,
                         lineage_seq=1)  # fmt: skip
    assert done["visible_surfaces"] == ["x"]
    assert done["entries"][0]["base_state"] == "Active"
    assert session.state("surfaces", "apply_reload", server_id="m")["pending_server_ids"] == ["m"]


def test_an_item_is_classed_and_the_answer_says_as_what(session: MachineWorld) -> None:
    session.state("admission", "SetSilentIntents", intents=["quiet"])
    seen = session.state("peers", "classify_external_envelope", item_id="i", from_peer="Ann",
                         envelope_kind="Request", request_intent="quiet")  # fmt: skip
    assert seen["silent_intents"] == ["quiet"]
    (classed,) = [e["fields"] for e in seen["effects"] if e["name"] == "PeerIngressClassified"]
    assert (classed["cls"], classed["request_id"]) == ("SilentRequest", "i")


def test_a_rejected_approval_input_gets_its_reason(session: MachineWorld) -> None:
    told = session.state("approvals", "decide_approval", approval_id="a", decision="Approve")
    assert told["status"] is None
    assert told["effects"][0]["fields"]["reason"] == "NotFound"
    session.state("approvals", "create_approval", approval_id="a", approve_ok=True, deny_ok=False,
                  expiry=False)  # fmt: skip
    told = session.state("approvals", "decide_approval", approval_id="a", decision="Approve")
    assert (told["status"], told["effects"][0]["name"]) == ("Approved", "ApprovalStatusResolved")


def test_a_lease_by_commands(realm: MachineWorld) -> None:
    def lease(on: str, **params: Any) -> dict[str, Any]:
        return realm.state("leases", on, key=LEASE, **params)

    acquired = lease("acquire_lease", expires_at_ts=100)
    assert (acquired["phase"], acquired["generation"]) == ("Valid", 1)
    assert acquired["credential_published_at_millis"] == realm.facts_of("lease", LEASE)[0].at_ms
    assert lease("begin_refresh")["phase"] == "Refreshing"
    assert lease("refresh_failed", permanent=False)["phase"] == "Expiring"
    refusal = realm.refused("leases", "refresh_failed", key=LEASE, permanent=True)
    assert refusal["context"] == "AuthLeaseHandle::refresh_failed"
    kept = {k: v for k, v in lease("snapshot").items() if k != "effects"}
    assert lease("release_lease")["phase"] is None
    assert lease("undo_release")["phase"] == "Expiring"
    lease("release_credential_lifecycle")
    realm.forget()
    assert lease("snapshot")["generation"] == 1
    restored = lease("restore_auth_lifecycle_snapshot", snapshot=kept, expires_at=100)
    assert (restored["phase"], restored["generation"]) == (kept["phase"], kept["generation"] + 1)
    empty = {**kept, "credential_present": False}
    assert not lease("restore_auth_lifecycle_snapshot", snapshot=empty)["effects"]
    assert lease("snapshot")["generation"] == restored["generation"]
    assert lease("acquire_lease", expires_at_ts=2**64 - 1)["expires_at"] is None


def test_logins_are_counted_over_all_keys_of_the_node(realm: MachineWorld) -> None:
    flow = {"provider": "p", "expires_at_millis": 9, "max_outstanding_flows": 1}
    realm.state("leases", "admit_oauth_device_flow", key="a:b", flow_id="f", **flow)
    refusal = realm.refused("leases", "admit_oauth_device_flow", key="a:c", flow_id="f", **flow)
    assert refusal["reason"] == "1 logins are active, the limit is 1"
    realm.state("leases", "expire_oauth_device_flow", key="a:b", flow_id="f")
    realm.state("leases", "admit_oauth_device_flow", key="a:c", flow_id="f", **flow)
