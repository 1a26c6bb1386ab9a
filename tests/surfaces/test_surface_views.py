"""What is told of surfaces and MCP servers, and mcp_server_lifecycle judged by machines.json."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from immutables import Map

from rookery.actors.kernel.machines.machine import LIVE, Edition, HostPhase, SessionHost
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS, McpServers, pending_server_ids
from rookery.actors.surfaces.state import (
    Surfaces,
    diagnostic_snapshot,
    has_pending_or_staged,
    pending_surfaces,
    visible_surfaces,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.surface import SURFACE_FACTS
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceFailureCause,
    McpServerState,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)
from tests.machines.laws import History, every_ask, histories
from tests.machines.oracle_comparison import Judged
from tests.selection import examples
from tests.surfaces.test_surface_machine import ATTACHED, active, boundary, job, removing, taken

CODEC: FactCodec[Any] = FactCodec(SURFACE_FACTS)
POOLS: dict[str, tuple[Any, ...]] = {"server_id": ("a", "b"), "error": ("boom",)}
SERVED = SessionHost(phase=HostPhase.ATTACHED, session_id="s")


# --- surfaces -------------------------------------------------------------------------------------


def test_a_registered_surface_is_shown_without_any_state() -> None:
    known = taken(active(), "register", surface_id="t")
    assert diagnostic_snapshot(known).entries[1] == SurfaceSnapshot(surface_id="t")


def test_a_job_that_came_back_reads_as_zero() -> None:
    (shown,) = diagnostic_snapshot(active()).entries
    assert shown == SurfaceSnapshot(
        surface_id="s",
        base_state="Active",
        pending_task_sequence=0,
        pending_lineage_sequence=0,
        last_delta_operation="Add",
        last_delta_phase="Applied",
    )


def test_a_removal_shows_its_clock() -> None:
    (shown,) = diagnostic_snapshot(removing()).entries
    assert (shown.removal_draining_since_ms, shown.removal_timeout_at_ms) == (1_000, 31_000)
    assert (shown.removal_applied_at_turn, shown.base_state) == (1, "Removing")
    assert visible_surfaces(removing()) == ()


def test_the_diagnostic_lists_known_surfaces_by_their_ids() -> None:
    state = active("m")
    for surface_id in ("z", "a"):
        state = taken(state, "register", surface_id=surface_id)
    seen = diagnostic_snapshot(state)
    assert seen.known_surfaces == tuple(entry.surface_id for entry in seen.entries)
    assert seen.known_surfaces == ("a", "m", "z")
    assert (seen.visible_surfaces, seen.has_pending_or_staged) == (("m",), False)
    assert (seen.surface_phase, seen.snapshot_epoch, seen.snapshot_aligned_epoch) == (
        "Operating",
        2,
        0,
    )
    packed = msgspec.json.encode(seen)
    assert msgspec.json.decode(packed, type=SurfaceDiagnosticSnapshot) == seen


def test_pending_is_what_has_a_job_and_staged_is_what_waits() -> None:
    staged = taken(Surfaces(host=ATTACHED), "stage_add", surface_id="s", now_ms=0)
    assert (has_pending_or_staged(staged), pending_surfaces(staged)) == (True, ())
    pending = boundary(staged)
    assert (has_pending_or_staged(pending), pending_surfaces(pending)) == (True, ("s",))
    shown = taken(pending, "mark_pending_succeeded", **job(pending))
    assert (has_pending_or_staged(shown), pending_surfaces(shown)) == (False, ())


def test_a_failure_cause_travels_as_its_word() -> None:
    cause = ExternalToolSurfaceFailureCause.PENDING_FAILED
    assert msgspec.json.encode(cause) == b'"pending_failed"'
    assert str(cause) == "pending_failed"


# --- MCP servers ----------------------------------------------------------------------------------


def test_the_table_of_servers_has_the_models_rows_and_parameters() -> None:
    model = Judged(MCP_SERVERS).oracle
    assert [(r.name, r.on) for r in MCP_SERVERS.transitions] == [
        (r["name"], r["on"]) for r in model.rows
    ]
    assert {on: asked.params for on, asked in MCP_SERVERS.inputs.items()} == model.inputs
    assert list(MCP_SERVERS.phases) == model.model["phases"]


@pytest.mark.parametrize("edition", Edition)
def test_every_input_of_every_server_does_what_the_model_says(edition: Edition) -> None:
    judged = Judged(MCP_SERVERS, edition)
    standing = [Map(), *(Map(a=state) for state in McpServerState)]
    for phase, session, states in itertools.product(HostPhase, (None, "s"), standing):
        servers = McpServers(
            host=SessionHost(phase=phase, session_id=session), mcp_server_states=states
        )
        for on in MCP_SERVERS.inputs:
            for params in every_ask(MCP_SERVERS, on, POOLS):
                after = judged.step(servers, on, params)
                assert (after is servers) == (session is None or phase not in LIVE)
    assert judged.hit == {row.name for row in MCP_SERVERS.transitions}


@examples(60)
@given(histories(MCP_SERVERS, POOLS, [SERVED, SessionHost()]))
def test_folding_the_facts_of_servers_is_what_was_decided_upon(steps: list[Any]) -> None:
    History(MCP_SERVERS, CODEC, initial=McpServers(host=SERVED)).live(steps).check()


def test_a_repeated_input_repeats_its_effect() -> None:
    servers = McpServers(host=SERVED)
    for _ in range(2):
        fact = MCP_SERVERS.decide(
            servers, "apply_connected", MCP_SERVERS.candidate("apply_connected", {"server_id": "a"})
        )
        servers = MCP_SERVERS.evolve(servers, fact)
        (effect,) = MCP_SERVERS.effects(servers, fact)
        assert effect.new_state == "Connected"


def test_a_reload_is_requested_before_the_state_is_emitted() -> None:
    draft = MCP_SERVERS.candidate("apply_reload", {"server_id": "a"})
    fact = MCP_SERVERS.decide(McpServers(host=SERVED), "apply_reload", draft)
    servers = MCP_SERVERS.evolve(McpServers(host=SERVED), fact)
    names = [type(effect).__name__ for effect in MCP_SERVERS.effects(servers, fact)]
    assert names == ["McpServerReloadRequested", "McpServerStateChanged"]


def test_servers_still_connecting_are_listed_by_their_ids() -> None:
    states = {"z": "PendingConnect", "b": "Connected", "a": "PendingConnect", "c": "Failed"}
    servers = McpServers(mcp_server_states=Map({k: McpServerState(v) for k, v in states.items()}))
    assert pending_server_ids(servers) == ("a", "z")
