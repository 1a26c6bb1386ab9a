"""session_lifecycle and session_admission against machines.json: every transition, every
refusal."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import pytest

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.kernel.machines.machine import (
    HostPhase,
    Machine,
    SessionHost,
    TransitionRejected,
)
from rookery.schemas.errors import Failed
from tests.machines.oracle_comparison import Judged, variables

MACHINES = (LIFECYCLE, ADMISSION)
POOLS: dict[str, tuple[Any, ...]] = {
    "session_id_in": ("s", "other"),
    "agent_runtime_id": ("runtime",),
    "fence_token": (0, 7),
    "generation": (1,),
    "intents": (("quiet",), ()),
    "reason": ("because",),
    "run_id": ("run-1", "run-2"),
    "input_id": ("input-1",),
    "runtime_id": ("runtime",),
    "work_id": ("work",),
    "origin": ("External",),
    "immediate": (False, True),
    "interrupt_yielding": (False, True),
    "wake_if_idle": (False, True),
}
OBSERVED: dict[str, dict[str, tuple[Any, ...]]] = {
    "fail_run": {
        "turn_phase": (None, "Completed", "Failed"),
        "terminal_cause_kind": (None, "Unknown", "LlmFailure"),
    }
}


def choices(machine: Machine[Any], on: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every combination of parameters and of observed values."""
    names = machine.inputs[on].params
    seen = OBSERVED.get(on, {})
    return [
        (dict(zip(names, values, strict=True)), dict(zip(seen, looks, strict=True)))
        for values in itertools.product(*(POOLS[name] for name in names))
        for looks in itertools.product(*seen.values())
    ]


def every_host() -> list[SessionHost]:
    """Every phase with every combination of what transitions read or change, legal or not."""
    return [
        SessionHost(
            phase=phase,
            session_id=session,
            active_runtime_id=runtime,
            active_fence_token=3 if runtime else None,
            current_run_id=run,
            pre_run_phase=home,
            silent_intents=frozenset(["old"]),
        )
        for phase in HostPhase
        for session in (None, "s")
        for runtime in (None, "old-runtime")
        for run in (None, "run-1")
        for home in (None, HostPhase.IDLE, HostPhase.ATTACHED, HostPhase.RETIRED)
    ]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_table_has_the_models_rows_and_parameters(machine: Machine[Any]) -> None:
    model = Judged(machine).oracle
    assert [(r.name, r.on) for r in machine.transitions] == [
        (r["name"], r["on"]) for r in model.rows
    ]
    assert {on: asked.params for on, asked in machine.inputs.items()} == model.inputs
    assert list(machine.phases) == model.model["phases"]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_input_in_every_state_does_what_the_model_says(machine: Machine[Any]) -> None:
    judged = Judged(machine)
    covered = set()
    for host in every_host():
        for on in machine.inputs:
            for params, observed in choices(machine, on):
                judged.step(host, on, params, **observed)
            covered.add((host.phase, on))
    assert len(covered) == len(HostPhase) * len(machine.inputs)
    assert judged.hit == {row.name for row in machine.transitions}


@pytest.mark.parametrize("seed", range(40))
def test_any_history_goes_the_way_of_the_model(seed: int) -> None:
    rng = random.Random(seed)
    judged = [Judged(machine) for machine in MACHINES]
    host = SessionHost()
    for _ in range(150):
        chosen = rng.choice(judged)
        on = rng.choice(list(chosen.machine.inputs))
        if on == "Destroy" and rng.random() < 0.9:
            continue
        params, observed = rng.choice(choices(chosen.machine, on))
        host = chosen.step(host, on, params, **observed)


def reachable() -> dict[SessionHost, int]:
    """Every host reachable from the initial one, with its distance."""
    found, open_hosts = {SessionHost(): 0}, deque([SessionHost()])
    while open_hosts:
        host = open_hosts.popleft()
        for machine in MACHINES:
            for on in machine.inputs:
                for params, observed in choices(machine, on):
                    draft = machine.candidate(on, params)
                    draft = type(draft)(**{**variables(draft), **observed})
                    try:
                        fact = machine.decide(host, on, draft)
                    except TransitionRejected:
                        continue
                    after = machine.evolve(host, fact)
                    if after not in found:
                        found[after] = found[host] + 1
                        open_hosts.append(after)
    return found


def test_no_way_leads_to_a_host_that_breaks_an_invariant() -> None:
    found = reachable()
    for host in found:
        broken = [holds.__name__ for holds in LIFECYCLE.invariants if not holds(host)]
        assert not broken, (host, broken)
    assert len(found) > 300
    assert max(found.values()) >= 6


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_folding_a_row_never_fails_whatever_the_state(machine: Machine[Any]) -> None:
    target = {row["name"]: row["to"] for row in Judged(machine).oracle.rows}
    for host in every_host():
        before = variables(host)
        for row in machine.transitions:
            for params, _ in choices(machine, row.on):
                draft = machine.candidate(row.on, params)
                fact = type(draft)(**{**variables(draft), "row": row.name})
                after = machine.evolve(host, fact)
                to = target[row.name]
                assert after.phase == (host.phase if to == "same" else to)
                machine.effects(after, fact)
        assert variables(host) == before


def test_a_fact_that_names_no_row_of_ours_says_so_by_code() -> None:
    prepared = ADMISSION.candidate("prepare", {"run_id": "run-1"})
    for row in ("", "PrepareTomorrow", "RegisterSession"):
        fact = type(prepared)(**{**variables(prepared), "row": row})
        with pytest.raises(Failed) as failed:
            ADMISSION.evolve(SessionHost(), fact)
        assert failed.value.code == "FACT_UNKNOWN"
