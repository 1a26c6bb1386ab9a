"""A decider that follows its session's host has the same state in any order of the facts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from rookery.actors.admission.commands import AdmissionQuotas, accept, handle_input
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import Admission
from rookery.actors.kernel.machines.decider import SessionMachineDecider
from rookery.actors.kernel.machines.machine import host_of
from rookery.actors.peers.decider import PeersDecider
from rookery.actors.surfaces.decider import SurfacesDecider
from rookery.actors.turns.decider import TurnsDecider
from rookery.schemas.codec import FactCodec, encode_facts
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts.session import SESSION_FACTS
from rookery.schemas.run import RunRequest, SessionMeta
from tests.kernel.machines.machine_world import START

SESSION: FactCodec[Any] = FactCodec(SESSION_FACTS)
RUNS = ("run-1", "run-2")
ADMISSION = (
    *((on, {}) for on in ("Retire", "Reset", "Destroy", "Destroy", "RuntimeExecutorExited")),
    *((on, {"run_id": run}) for on in ("prepare", "rollback_run") for run in RUNS),
)
OWN: dict[type[SessionMachineDecider], tuple[tuple[str, dict[str, Any]], ...]] = {
    TurnsDecider: (
        *(("start_conversation_run", {"run_id": run, **START}) for run in RUNS),
        *(("start_immediate_append", {"run_id": run}) for run in RUNS),
        *((on, {"run_id": run}) for on in ("run_completed", "run_cancelled") for run in RUNS),
        *((on, {}) for on in ("primitive_applied", "llm_returned_terminal", "boundary_complete")),
        *((on, {}) for on in ("turn_in_flight", "turn_terminal", "claim_turn", "abort_claim")),
        ("set_baseline", {"model": "m", "realtime_capable": True}),
    ),
    SurfacesDecider: (
        ("register", {"surface_id": "x"}),
        ("stage_add", {"surface_id": "x", "now_ms": 1}),
        ("shutdown_surface", {}),
        ("apply_reload", {"server_id": "m"}),
    ),
    PeersDecider: (
        ("request_sent", {"corr_id": "c", "dest": "p"}),
        ("response_progress", {"corr_id": "c"}),
        ("spawn_drain", {"mode": "Timed"}),
        ("context_advanced", {"updated_at_ms": 3}),
        ("set_peer_ingress_context", {"keep_alive": True}),
    ),
}


class Generation:
    """A session's admission and one other decider, which gets admission's facts late."""

    def __init__(self, kind: type[SessionMachineDecider]) -> None:
        self.concern = kind()
        self.state = self.concern.initial("s")
        self.admission = Admission(meta=SessionMeta(id="s"))
        self.session: list[Any] = []
        self.own: list[Any] = []
        self.heard = 0

    def run(self) -> None:
        """A client sends a run; a destroyed session begins its next generation."""
        asked = Command(verb="run", key="s", id=f"c{len(self.session)}", body=RunRequest(code="1"))
        self._note(accept(self.admission, asked, now_ms=0, quotas=AdmissionQuotas(100, 100, 0)))

    def admit(self, on: str, params: dict[str, Any]) -> None:
        self._note(handle_input(self.admission, _command("admission", on, params), now_ms=0))

    def _note(self, facts: Iterable[Any]) -> None:
        for fact in facts:
            (stored,) = SESSION.decode(encode_facts([fact]))
            self.admission = evolve(self.admission, stored)
            self.session.append(stored)

    def hear(self) -> None:
        if self.heard < len(self.session):
            self.state = self.concern.observe(self.state, self.session[self.heard])
            self.heard += 1

    def ask(self, on: str, params: dict[str, Any]) -> None:
        (verb,) = (verb for verb, kind in self.concern.verbs.items() if kind is HandleInput)
        for fact in self.concern.decide(self.state, _command(verb, on, params), now_ms=0):
            (stored,) = self.concern.codec.decode(encode_facts([fact]))
            self.state = self.concern.evolve(self.state, stored)
            self.own.append(stored)


def _command(verb: str, on: str, params: dict[str, Any]) -> Command[HandleInput]:
    return Command(verb=verb, key="s", id="c", body=HandleInput(input=on, params=params))


def lived(kind: type[SessionMachineDecider], rng: random.Random) -> Generation:
    life = Generation(kind)
    for _ in range(50):
        with suppress(Refused):
            step = rng.random()
            if step < 0.1:
                life.run()
            elif step < 0.25:
                life.admit(*rng.choice(ADMISSION))
            elif step < 0.6:
                life.hear()
            else:
                life.ask(*rng.choice(OWN[kind]))
    while life.heard < len(life.session):
        life.hear()
    return life


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.family)
def test_own_facts_may_be_folded_before_all_observed_ones(
    kind: type[SessionMachineDecider],
) -> None:
    generations, directs = set(), 0
    for seed in range(150):
        life = lived(kind, random.Random(seed))
        concern, state = life.concern, life.concern.initial("s")
        for fact in life.own:
            state = concern.evolve(state, fact)
        for fact in life.session:
            state = concern.observe(state, fact)
        assert state == life.state, seed
        assert concern.load(concern.dump(state)) == state
        generations.add(state.generation)
        directs += sum(getattr(fact, "direct", False) for fact in life.own)
    assert max(generations) > 2
    assert directs or kind is not TurnsDecider


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.family)
def test_every_machine_has_the_observed_host_except_a_direct_turn(
    kind: type[SessionMachineDecider],
) -> None:
    for seed in range(50):
        life = lived(kind, random.Random(seed))
        assert life.state.host == life.admission.host
        for part in kind.bindings:
            host = host_of(getattr(life.state, part.field))
            direct = getattr(life.state, "direct_run_id", None)
            assert host in (None, life.state.host) or (part.field == "turn" and direct)
