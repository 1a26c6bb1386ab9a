"""realtime_product_turn and model_routing against machines.json, and the rules that surprise."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import (
    DESTROYED,
    IDLE,
    LIVE,
    RUNNING,
    HostPhase,
    Machine,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING, ModelRouting, RoutingPhase
from rookery.actors.turns.realtime_turn_machine import (
    PRODUCT_TURN,
    ProductTurn,
    RealtimeProjectionFreshnessChanged,
    RealtimeReconnectPolicyChanged,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.turn import TURN_FACTS, TurnFact
from rookery.schemas.machines.turn import (
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeReconnectPolicy,
)
from tests.machines.laws import History, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged

CODEC: FactCodec[TurnFact] = FactCodec(TURN_FACTS)
Phase, Policy = RealtimeProductTurnPhase, RealtimeReconnectPolicy
CLEAN, DEFERRED, IMMEDIATE = RealtimeProjectionFreshness
POOLS: dict[str, tuple[Any, ...]] = {
    "advanced_at_ms": (0, 5, 6, 9),
    "observed_ms": (0, 5, 6),
    "baseline_ms": (0, 5, 6),
    "model": ("one", "other"),
    "realtime_capable": (False, True),
}
HOSTS = [
    SessionHost(phase=phase, session_id=session) for phase in HostPhase for session in (None, "s")
]  # fmt: skip
MACHINES = (PRODUCT_TURN, MODEL_ROUTING)


def every_state(machine: Machine[Any]) -> list[Any]:
    if machine is MODEL_ROUTING:
        known = {"baseline_model": "old", "baseline_realtime": True, "topology_epoch": 4}
        return [
            ModelRouting(phase=phase, host=host, **(known if phase == "Set" else {}))
            for phase in RoutingPhase
            for host in HOSTS
        ]
    return [
        ProductTurn(
            phase=phase, freshness=freshness, frontier_ms=5, reconnect_policy=policy, host=host
        )
        for phase, freshness, policy, host in itertools.product(
            Phase, RealtimeProjectionFreshness, Policy, HOSTS[::2]
        )
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
    for on in machine.inputs:
        asked = every_ask(machine, on, POOLS)
        for state in every_state(machine):
            for params in asked:
                judged.step(state, on, params)
    assert judged.hit == {row.name for row in machine.transitions}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_any_history_goes_the_way_of_the_model(machine: Machine[Any]) -> None:
    rng, judged = random.Random(11), Judged(machine)
    state, clock_ms = machine.initial, 0
    for _ in range(3_000):
        clock_ms += rng.choice((0, 0, 1))
        now = {name: (max(clock_ms - 1, 0), clock_ms, clock_ms + 1) for name in POOLS}
        pools = {**now, "model": POOLS["model"], "realtime_capable": POOLS["realtime_capable"]}
        asked = {on: every_ask(machine, on, pools) for on in machine.inputs}
        if rng.random() < 0.1:
            state = replace(state, host=rng.choice(HOSTS))
        state = judged.step(state, *likely_ask(rng, machine, state, asked))
        for holds in machine.invariants:
            assert holds(state), holds.__name__
    assert judged.hit == {row.name for row in machine.transitions}


@given(histories(PRODUCT_TURN, POOLS, HOSTS))
def test_folding_the_facts_of_a_product_turn_is_what_was_decided_upon(steps: list[Any]) -> None:
    History(PRODUCT_TURN, CODEC).live(steps).check()


@given(histories(MODEL_ROUTING, POOLS, HOSTS, steps_max=10))
def test_folding_the_facts_of_a_routing_is_what_was_decided_upon(steps: list[Any]) -> None:
    History(MODEL_ROUTING, CODEC).live(steps).check()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_folding_a_row_never_fails_whatever_the_state(machine: Machine[Any]) -> None:
    for state in every_state(machine):
        for row in machine.transitions:
            for params in every_ask(machine, row.on, POOLS):
                fact = replace(machine.candidate(row.on, params), row=row.name)
                machine.effects(machine.evolve(state, fact), fact)


# --- the product turn, one rule a test ------------------------------------------------------------


def after(*steps: str | tuple[str, int], start: ProductTurn | None = None) -> ProductTurn:
    turn = start or ProductTurn(host=SessionHost(phase=RUNNING))
    for step in steps:
        on, *values = (step,) if isinstance(step, str) else step
        names = PRODUCT_TURN.inputs[on].params
        draft = PRODUCT_TURN.candidate(on, dict(zip(names, values, strict=True)))
        turn = PRODUCT_TURN.evolve(turn, PRODUCT_TURN.decide(turn, on, draft))
    return turn


def refuses(turn: ProductTurn, *steps: str | tuple[str, int]) -> bool:
    with pytest.raises(TransitionRejected):
        after(*steps, start=turn)
    return True


def test_a_turn_committed_and_heard_may_be_preempted_in_either_order() -> None:
    one = after("turn_in_flight", "turn_committed", "output_started")
    other = after("turn_in_flight", "output_started", "turn_committed")
    assert one == other
    assert one.should_preempt_on_input
    assert one.is_in_flight
    assert not after("turn_in_flight", "turn_committed").should_preempt_on_input
    assert not after().is_in_flight


def test_an_interruption_undoes_only_that_output_was_heard() -> None:
    assert (
        after("turn_in_flight", "output_started", "turn_interrupted").phase
        is Phase.AWAITING_PROGRESS
    )
    preemptible = after("turn_in_flight", "turn_committed", "output_started")
    assert after("turn_interrupted", start=preemptible).phase is Phase.COMMITTED
    for steps in ((), ("turn_in_flight",), ("turn_in_flight", "turn_committed")):
        assert refuses(after(*steps), "turn_interrupted")


def test_an_advance_during_a_turn_is_put_off_and_while_idle_it_is_not() -> None:
    idle = after(("projection_advance_observed", 5))
    assert idle.is_projection_stale_immediate
    turn = after("turn_in_flight", ("projection_advance_observed", 6), start=idle)
    assert (turn.freshness, turn.frontier_ms) == (DEFERRED, 6)


def test_the_same_time_again_is_no_advance() -> None:
    turn = after(("projection_advance_observed", 5))
    assert refuses(turn, ("projection_advance_observed", 5))
    assert refuses(turn, ("projection_advance_observed", 4))


def test_only_classifying_a_turn_as_terminated_makes_what_was_put_off_due() -> None:
    deferred = after("turn_in_flight", ("projection_advance_observed", 5))
    ended = after("turn_terminal", start=deferred)
    assert ended.freshness is DEFERRED
    one = after("classify_turn_terminated", start=ended)
    other = after("classify_turn_terminated", "turn_terminal", start=deferred)
    assert one == other
    assert one.freshness is IMMEDIATE
    assert refuses(one, "classify_turn_terminated")


def test_a_deferred_advance_is_overtaken_by_a_newer_one_while_idle() -> None:
    turn = after("turn_in_flight", ("projection_advance_observed", 5), "turn_terminal")
    assert after(("projection_advance_observed", 6), start=turn).freshness is IMMEDIATE


def test_classifying_a_turn_as_terminated_reports_the_freshness_even_unchanged() -> None:
    turn = after("classify_mid_turn_activity")
    fact = PRODUCT_TURN.decide(
        turn, "classify_turn_terminated", PRODUCT_TURN.candidate("classify_turn_terminated", {})
    )
    ended = PRODUCT_TURN.evolve(turn, fact)
    assert PRODUCT_TURN.effects(ended, fact) == (
        RealtimeReconnectPolicyChanged(new_policy=Policy.CLEAN_EXIT),
        RealtimeProjectionFreshnessChanged(new_freshness=CLEAN, frontier_ms=0),
    )


def test_a_refresh_from_before_the_frontier_loses_no_advance() -> None:
    turn = after(("projection_advance_observed", 5))
    assert refuses(turn, ("projection_refreshed", 4))
    fresh = after(("projection_refreshed", 7), start=turn)
    assert (fresh.freshness, fresh.frontier_ms) == (CLEAN, 7)
    assert refuses(fresh, ("projection_refreshed", 7))


def test_a_reset_always_cleans_and_never_lowers_the_frontier() -> None:
    turn = after(("projection_advance_observed", 5), ("projection_reset", 2))
    assert (turn.freshness, turn.frontier_ms) == (CLEAN, 5)
    assert refuses(turn, ("projection_reset", 5))


@pytest.mark.parametrize("on", ["classify_client_input_submitted", "classify_mid_turn_activity"])
def test_activity_makes_a_clean_close_a_reason_to_come_back_until_the_turn_ends(on: str) -> None:
    turn = after(on)
    assert turn.reconnect_policy is Policy.REATTACH_AND_RECOVER
    assert refuses(turn, on)
    ended = after("classify_turn_terminated", start=turn)
    assert ended.reconnect_policy is Policy.CLEAN_EXIT


def test_a_destroyed_session_has_no_product_turn() -> None:
    for on in PRODUCT_TURN.inputs:
        pools = {**POOLS, "advanced_at_ms": (9,)}
        for params in every_ask(PRODUCT_TURN, on, pools):
            asked = (on, *params.values())
            assert refuses(ProductTurn(host=SessionHost(phase=DESTROYED)), asked)


# --- routing --------------------------------------------------------------------------------------


def test_the_same_baseline_again_is_a_new_topology() -> None:
    routing = ModelRouting(host=SessionHost(phase=IDLE, session_id="s"))
    for epoch in (1, 2, 3):
        draft = MODEL_ROUTING.candidate("set_baseline", {"model": "one", "realtime_capable": False})
        fact = MODEL_ROUTING.decide(routing, "set_baseline", draft)
        routing = MODEL_ROUTING.evolve(routing, fact)
        assert routing.topology_epoch == epoch


def test_a_baseline_wants_a_session_that_is_there() -> None:
    for host in HOSTS:
        routing = ModelRouting(host=host)
        draft = MODEL_ROUTING.candidate("set_baseline", {"model": "one", "realtime_capable": False})
        if host.phase in LIVE and host.session_id is not None:
            MODEL_ROUTING.decide(routing, "set_baseline", draft)
        else:
            with pytest.raises(TransitionRejected):
                MODEL_ROUTING.decide(routing, "set_baseline", draft)
