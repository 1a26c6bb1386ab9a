"""What a session does with the catalogue, decided and folded without a node."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.machines.machine import HostPhase, SessionHost
from rookery.actors.surfaces.catalogue import Catalogue, CatalogueEntry, RecordCatalogue
from rookery.actors.surfaces.decider import SessionSurfaces, SurfacesDecider
from rookery.actors.surfaces.effects import (
    CompleteSurface,
    ConnectSurface,
    DrainSurface,
    ReportServer,
    SettleRemoval,
    TakeUp,
)
from rookery.schemas.calls import OfferedSurface
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import SurfaceDue, SurfaceKind, SurfaceSource

SESSION = "s"
NAMES = ("a", "b", "c")


class World:
    """One session: decides, folds, and keeps what was left."""

    def __init__(self, phase: HostPhase = HostPhase.RUNNING) -> None:
        self.decider = SurfacesDecider(executes_runs=True)
        host = SessionHost(phase=phase)
        self.state: SessionSurfaces = self.decider.with_host(self.decider.initial(SESSION), host)
        self.left: list[Any] = []
        self.now_ms = 1_000

    def put(self, body: Any, key: str = SESSION, name: str = "local/1") -> Sequence[Any]:
        verb = "surfaces" if isinstance(body, HandleInput) else ""
        command = Command(verb=verb, key=key, id=name, body=body)
        left = self.decider.decide(self.state, command, now_ms=self.now_ms)
        for fact in left:
            self.state = self.decider.evolve(self.state, fact)
        self.left += left
        return left

    def take_up(self, entries: dict[str, int], catalogued: int, **more: Any) -> Sequence[Any]:
        offered = tuple(
            OfferedSurface(surface=name, tools=f"tools-{number}", sequence=number)
            for name, number in sorted(entries.items())
        )
        boundary = more.pop("boundary", 1)
        taken = TakeUp(entries=offered, catalogued=catalogued, boundary=boundary, **more)
        return self.put(taken)

    @property
    def effects(self) -> Sequence[Any]:
        return self.decider.pending_effects(self.state, SESSION)

    def perform(self, error: str = "") -> None:
        """End every job, and every removal that has no call in flight."""
        for effect in self.effects:
            if isinstance(effect, ConnectSurface):
                self.put(
                    CompleteSurface(
                        surface=effect.surface,
                        task=effect.task,
                        lineage=effect.lineage,
                        error=error,
                    )
                )
            elif isinstance(effect, DrainSurface):
                timeout_at_ms = effect.timeout_at_ms
                self.put(SettleRemoval(surface=effect.surface, timeout_at_ms=timeout_at_ms))

    @property
    def visible(self) -> set[str]:
        return set(self.state.surfaces.visible_surfaces)


def kinds(left: Sequence[Any]) -> list[str]:
    return [type(fact).__name__ for fact in left]


def test_a_session_takes_up_what_the_catalogue_has_and_gives_up_what_it_has_not():
    world = World()
    assert kinds(world.take_up({"a": 1}, 1)) == ["AddStaged", "BoundaryApplied", "SnapshotAligned"]
    assert world.visible == set(), "it is not connected yet"
    world.perform()
    assert world.visible == {"a"}
    assert not world.take_up({"a": 1}, 1), "nothing has changed"
    reloaded = world.take_up({"a": 2}, 2)
    assert kinds(reloaded)[0] == "ReloadStaged"
    assert world.visible == {"a"}, "it serves while it is reloaded"
    world.perform()
    removed = world.take_up({}, 3, in_flight={"a": 2})
    assert kinds(removed) == [
        "RemoveStaged",
        "CallStarted",
        "CallStarted",
        "BoundaryApplied",
        "SnapshotAligned",
    ]
    assert world.visible == set()
    world.perform()
    assert kinds(world.left)[-4:] == [
        "CallFinished",
        "CallFinished",
        "RemovalFinalized",
        "SnapshotAligned",
    ]
    assert world.effects == []


def test_between_boundaries_a_change_is_only_staged():
    world = World()
    assert kinds(world.take_up({"a": 1, "b": 1}, 1, boundary=None)) == ["AddStaged", "AddStaged"]
    assert world.take_up({"a": 1, "b": 1}, 1, boundary=None) == []
    assert kinds(world.take_up({"a": 1}, 2)) == [
        "RemoveStaged",
        "BoundaryApplied",
        "BoundaryApplied",
        "SnapshotAligned",
    ], "the last intent wins"


def test_fifty_surfaces_are_staged_and_applied_in_one_boundary():
    world = World()
    left = world.take_up({f"s{number}": 1 for number in range(50)}, 1)
    assert kinds(left).count("BoundaryApplied") == 50
    assert len(world.effects) == 50


def test_a_change_that_cancels_itself_is_taken_up_as_one_fact():
    world = World()
    assert kinds(world.take_up({}, 7)) == ["SnapshotAligned"]
    assert world.state.catalogued == 7
    assert world.take_up({}, 7) == []


def test_a_session_that_serves_no_turn_takes_nothing_up():
    world = World(HostPhase.RETIRED)
    assert world.take_up({"a": 1}, 1) == ()
    assert world.state.catalogued == 0


def test_a_node_serves_its_sessions_between_two_runs():
    world = World(HostPhase.IDLE)
    world.take_up({"a": 1}, 1)
    world.perform()
    assert world.visible == {"a"}


def test_effects_that_start_again_find_their_job_ended():
    world = World()
    world.take_up({"a": 1}, 1)
    (connect,) = world.effects
    ended = CompleteSurface(surface="a", task=connect.task, lineage=connect.lineage)
    assert kinds(world.put(ended)) == ["PendingSucceeded", "SnapshotAligned"]
    assert world.put(ended) == ()
    world.take_up({}, 2, in_flight={"a": 1})
    (drain,) = world.effects
    busy = SettleRemoval(surface="a", timeout_at_ms=drain.timeout_at_ms, in_flight=1)
    assert world.put(busy) == ()
    due = SurfaceDue(surface="a", timeout_at_ms=drain.timeout_at_ms)
    with pytest.raises(Refused, match="only a timer"):
        world.put(due)
    assert kinds(world.put(due, name="timer/1"))[0] == "RemovalForced"
    assert world.put(due, name="timer/2") == ()
    assert world.put(busy) == ()


def test_a_job_that_fails_leaves_the_surface_as_it_was_with_its_cause():
    world = World()
    world.take_up({"a": 1}, 1)
    world.perform(error="SURFACE_UNAVAILABLE: nobody there")
    (failed,) = [fact for fact in world.left if isinstance(fact, facts.PendingFailed)]
    assert failed.error == "SURFACE_UNAVAILABLE: nobody there"
    assert world.visible == set()
    assert world.effects == []


@pytest.mark.parametrize("seed", range(20))
def test_any_history_ends_with_what_the_catalogue_has(seed: int):
    rng, world, entries, epochs = random.Random(seed), World(), dict[str, int](), [0]
    for number in range(1, 40):
        name = rng.choice(NAMES)
        if rng.random() < 0.4:
            entries.pop(name, None)
        else:
            entries[name] = number
        world.now_ms += 100
        boundary = rng.choice((None, number))
        world.take_up(entries, number, boundary=boundary, in_flight={name: rng.randrange(3)})
        if rng.random() < 0.5:
            world.perform(error=rng.choice(("", "", "SURFACE_UNAVAILABLE: no")))
        state = world.state
        epochs.append(state.surfaces.snapshot_epoch)
        assert decode_state(encode_state(state), SessionSurfaces) == state
    assert epochs == sorted(epochs), "epochs only grow"
    for number in range(3):  # A removal may have to be finished before the surface is added again.
        entries = dict.fromkeys(entries, 100 + number)
        world.take_up(entries, 100 + number)
        world.perform()
    assert world.visible == set(entries)


def test_the_machine_of_a_server_learns_how_its_connection_is():
    world = World()
    host = msgspec.structs.replace(world.state.host, session_id=SESSION)
    world.state = world.decider.with_host(world.state, host)
    world.take_up({"a": 1}, 1)
    (connect,) = world.effects
    numbers = {"surface": "a", "task": connect.task, "lineage": connect.lineage}
    left = world.put(CompleteSurface(**numbers, is_server=True))
    assert kinds(left) == ["ServerConnected", "PendingSucceeded", "SnapshotAligned"]
    lost = ReportServer(surface="a", state=McpServerState.FAILED, error="EOF")
    assert kinds(world.put(lost)) == ["ServerFailed"]
    assert world.put(lost) == [], "it is known"
    again = ReportServer(surface="a", state=McpServerState.PENDING_CONNECT)
    assert kinds(world.put(again)) == ["ServerConnecting"]
    other = ReportServer(surface="b", state=McpServerState.CONNECTED)
    assert world.put(other) == [], "the session does not have it"


def test_a_session_takes_up_its_nodes_functions_only_when_it_loses_them_under_a_run():
    world = World()
    assert kinds(world.take_up({}, 1, without_local=1)) == ["SnapshotAligned"], "no run has them"
    world = World()
    lost = {"without_local": 2, "sees_functions": True}
    staged = world.take_up({}, 2, boundary=None, **lost)
    assert kinds(staged) == ["AddStaged", "BoundaryApplied", "PendingSucceeded", "RemoveStaged"]
    assert world.take_up({}, 2, boundary=None, **lost) == []
    applied = world.take_up({}, 2, in_flight={"local": 1}, **lost)
    assert kinds(applied) == ["CallStarted", "BoundaryApplied", "SnapshotAligned"]
    assert world.take_up({}, 2, **lost) == [], "it is known"
    assert kinds(world.take_up({}, 3, **lost)) == ["SnapshotAligned"], "and stays so"
    world.perform()
    assert kinds(world.left)[-3:] == ["CallFinished", "RemovalFinalized", "SnapshotAligned"]
    assert kinds(world.take_up({}, 4)) == ["AddStaged", "BoundaryApplied", "SnapshotAligned"]
    world.perform()
    assert world.visible == {"local"}, "the realm has returned them"
    assert world.take_up({}, 4) == []
    assert kinds(world.take_up({"a": 5}, 5))[0] == "AddStaged"
    assert kinds(world.take_up({"a": 5}, 6, without_local=6))[0] == "RemoveStaged"
    world.perform()
    assert world.visible == {"a"}


# --- the catalogue --------------------------------------------------------------------------------


def entry(name: str, tools: str = "t") -> CatalogueEntry:
    return CatalogueEntry(surface=name, source=SurfaceSource(kind=SurfaceKind.WORKER), tools=tools)


def test_a_change_is_decided_on_what_its_sender_knew():
    world = World()
    first = RecordCatalogue(after=0, entries=(entry("a"), entry("b")), listing="one")
    left = world.put(first, facts.REALM_KEY)
    assert [(fact.surface_id, fact.sequence) for fact in left] == [("a", 1), ("b", 1)]
    with pytest.raises(Failed, match="CONFLICT"):
        world.put(first, facts.REALM_KEY)
    second = RecordCatalogue(after=1, entries=(entry("a", "u"),), dropped=("b",), listing="two")
    world.put(second, facts.REALM_KEY)
    catalogue: Catalogue = world.state.catalogue
    assert [(one.surface, one.tools) for one in catalogue.offered] == [("a", "u")]
    assert catalogue.entries["a"].connection == 1, "the connection serves the new tools, too"
    reload = RecordCatalogue(after=2, entries=(entry("a", "u"),), reloaded=("a",), listing="two")
    world.put(reload, facts.REALM_KEY)
    assert world.state.catalogue.entries["a"].connection == 3


def test_a_catalogue_begins_with_the_functions_of_its_nodes():
    world = World()
    drop = RecordCatalogue(after=0, dropped=("local",), listing="none")
    (left,) = world.put(drop, facts.REALM_KEY)
    assert isinstance(left, facts.Dropped)
    assert not world.state.catalogue.has("local")
    assert world.put(replace(drop, after=1), facts.REALM_KEY) == (), "they are removed"
    source = SurfaceSource(kind=SurfaceKind.LOCAL)
    local = CatalogueEntry(surface="local", source=source, tools="t")
    world.put(RecordCatalogue(after=1, entries=(local,), listing="none"), facts.REALM_KEY)
    catalogue: Catalogue = world.state.catalogue
    assert catalogue.has("local")
    assert (catalogue.offered, catalogue.local_sequence) == ((), 2)


def test_the_realms_key_has_no_surfaces():
    with pytest.raises(Refused, match="INVALID_SESSION_ID"):
        World().put(HandleInput(input="register", params={"surface_id": "s"}), facts.REALM_KEY)


def test_facts_without_the_newer_fields_are_read():
    old = b'[{"type":"surface.add_staged.v1","surface_id":"s","now_ms":1,"row":"StageAdd"}]'
    (fact,) = SurfacesDecider.codec.decode(old)
    assert fact.entry is msgspec.UNSET
    assert SurfacesDecider().evolve(SessionSurfaces(), fact).taken == Map()
