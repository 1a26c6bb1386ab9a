"""The machines of peers, judged by machines.json in both editions: every row, every refusal.

Goal: whatever is asked of them in whatever state, they do what the model says, and what they made
of it can be had again from their facts or from any snapshot. Method: all combinations of small
pools; long random histories; and histories Hypothesis invents.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.decider import encode_state
from rookery.actors.kernel.machines.machine import (
    ATTACHED,
    IDLE,
    RUNNING,
    STOPPED,
    Edition,
    HostPhase,
    Machine,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.peers.context_machine import CONTEXT, SessionContext
from rookery.actors.peers.drain_machine import DRAIN, CommsDrain, DrainPhase
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.actors.peers.interaction_machine import (
    INBOUND,
    OUTBOUND,
    InboundRequests,
    OutboundRequests,
)
from rookery.actors.peers.stream_machine import STREAMS, InteractionStreams
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.peer import PEER_FACTS, PeerFact
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
)
from tests.machines.laws import History, Pools, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged, variables
from tests.selection import examples

MACHINES = (DRAIN, INGRESS, OUTBOUND, INBOUND, STREAMS, CONTEXT)
CODEC: FactCodec[PeerFact] = FactCodec(PEER_FACTS)
POOLS: Pools = {
    "mode": tuple(DrainMode),
    "notify_drain_exited.reason": tuple(DrainExitReason),
    "item_id": ("item",),
    "from_peer": ("sender",),
    "envelope_kind": ("Message", "Request", "Lifecycle", "Response", "Ack"),
    "request_intent": (
        *(None, "ask", "quiet", "Mob.peer_added"),
        *("mob.peer_added", "mob.peer_retired", "mob.peer_unwired", "supervisor.bridge"),
    ),
    "lifecycle_kind": (None, "PeerAdded", "PeerRetired", "PeerUnwired"),
    "lifecycle_peer_param": (None, "", "named"),
    "response_status": (None, "Accepted", "Completed", "Failed"),
    "in_reply_to": (None, "request"),
    "source_name": ("webhook",),
    "keep_alive": (False, True),
    "corr_id": ("a", "b"),
    "dest": ("peer",),
    "disposition": ("Completed", "Failed"),
    "reason": ("gone",),
    "updated_at_ms": (0, 1, 5, 6, 2**63 - 1),
}
QUIET = frozenset(["quiet"])
ALL_QUIET = frozenset(POOLS["request_intent"][1:])

HOSTS = [
    SessionHost(phase=phase, session_id=session)
    for phase in HostPhase
    for session in (None, "session")
]
named = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
both = pytest.mark.parametrize("edition", Edition)


def maps(states: tuple[Any, ...]) -> list[Map[str, Any]]:
    """Nothing, or any of the states, under the two ids of the pools."""
    return [
        Map({i: state for i, state in zip("ab", chosen, strict=True) if state is not None})
        for chosen in itertools.product((None, *states), repeat=2)
    ]


def without_host(machine: Machine[Any]) -> list[Any]:
    """Every combination of a machine's own variables."""
    if machine is DRAIN:
        modes = (None, *DrainMode)
        return [CommsDrain(phase=p, drain_mode=m) for p in DrainPhase for m in modes]
    if machine is OUTBOUND:
        live = tuple(s for s in OutboundPeerRequestState if not s.is_terminal)
        return [OutboundRequests(pending_peer_requests=pending) for pending in maps(live)]
    if machine is INBOUND:
        received = (InboundPeerRequestState.RECEIVED,)
        return [InboundRequests(inbound_peer_requests=pending) for pending in maps(received)]
    if machine is STREAMS:
        live = tuple(s for s in InteractionStreamState if not s.is_terminal)
        return [InteractionStreams(streams=streams) for streams in maps(live)]
    return [SessionContext(last_updated_at_ms=at_ms) for at_ms in (0, 5, 2**63 - 1)]


def every_state(machine: Machine[Any]) -> list[Any]:
    """With every host, legal or not."""
    if machine is INGRESS:
        quiet = (frozenset[str](), QUIET, ALL_QUIET)
        return [replace(host, silent_intents=intents) for host in HOSTS for intents in quiet]
    return [replace(state, host=host) for state in without_host(machine) for host in HOSTS]


def rows(machine: Machine[Any], edition: Edition) -> set[str]:
    return {row.name for row in machine.transitions if row.edition in (None, edition)}


@named
@both
def test_the_table_has_the_models_rows_and_parameters(
    machine: Machine[Any], edition: Edition
) -> None:
    model = Judged(machine, edition).oracle
    ours = [row for row in machine.transitions if row.edition in (None, edition)]
    assert [(row.name, row.on) for row in ours] == [(r["name"], r["on"]) for r in model.rows]
    assert {row.on: machine.inputs[row.on].params for row in ours} == model.inputs
    phases = HostPhase if machine is INGRESS else model.model["phases"]
    assert list(machine.phases) == list(phases)


@named
@both
def test_every_input_in_every_state_does_what_the_model_says(
    machine: Machine[Any], edition: Edition
) -> None:
    judged = Judged(machine, edition)
    for on in machine.inputs:
        if on == "classify_external_envelope":
            continue  # The next test's: its eight parameters do not all meet each other.
        asked = every_ask(machine, on, POOLS)
        assert asked, on
        for state in every_state(machine):
            for params in asked:
                judged.step(state, on, params)
    envelopes = {row.name for row in machine.transitions if row.on == "classify_external_envelope"}
    assert judged.hit == rows(machine, edition) - envelopes


@both
@pytest.mark.parametrize("kind", POOLS["envelope_kind"])
def test_every_envelope_in_every_state_is_classed_as_the_model_says(
    kind: str, edition: Edition
) -> None:
    """What a kind does not look at is there nevertheless, and changes nothing."""
    looked_at = {
        "Request": ("request_intent", "lifecycle_peer_param"),
        "Lifecycle": ("lifecycle_kind", "lifecycle_peer_param"),
        "Response": ("response_status", "in_reply_to"),
        "Ack": ("in_reply_to",),
    }.get(kind, ())
    judged, classed = Judged(INGRESS, edition), 0
    full = {name: POOLS[name][-1] for name in INGRESS.inputs["classify_external_envelope"].params}
    for state in every_state(INGRESS):
        for values in itertools.product(*(POOLS[name] for name in looked_at)):
            params = {**full, "envelope_kind": kind, **dict(zip(looked_at, values, strict=True))}
            judged.step(state, "classify_external_envelope", params)
            classed += 1
    ours = {row.name for row in INGRESS.transitions if row.name.startswith(f"Envelope{kind}")}
    assert judged.hit == ours
    assert classed >= len(HOSTS) * 3


# --- histories ------------------------------------------------------------------------------------

LIKELY_HOSTS = [
    *(
        SessionHost(phase=phase, session_id="session")
        for phase in (IDLE, ATTACHED, RUNNING, STOPPED)
    ),
    *(
        SessionHost(phase=RUNNING, session_id="session", silent_intents=q)
        for q in (QUIET, ALL_QUIET, ALL_QUIET)
    ),
    SessionHost(phase=ATTACHED),
]


def on_host(state: Any, host: SessionHost) -> Any:
    return host if isinstance(state, SessionHost) else replace(state, host=host)


@named
@both
def test_any_long_history_goes_the_way_of_the_model(
    machine: Machine[Any], edition: Edition
) -> None:
    """The host comes and goes, as a copy of it would, and so does the watermark's beginning."""
    rng, judged = random.Random(machine.name), Judged(machine, edition)
    likely = {**POOLS, "envelope_kind": (*POOLS["envelope_kind"], *["Request"] * 5)}
    asked = {on: every_ask(machine, on, likely) for on in machine.inputs}
    state = on_host(machine.initial, LIKELY_HOSTS[1])
    for step in range(6_000):
        if step % 10 == 0:
            host = rng.choice([*LIKELY_HOSTS * 3, *HOSTS])
            state = on_host(machine.initial if machine is CONTEXT else state, host)
        on, params = likely_ask(rng, machine, state, asked, edition=edition)
        state = judged.step(state, on, params)
    assert judged.hit == rows(machine, edition)


LISTENING = SessionHost(phase=RUNNING, session_id="session", silent_intents=QUIET)
LIVES = st.one_of(
    *(
        st.tuples(
            st.just(machine),
            st.sampled_from(Edition),
            histories(machine, POOLS, LIKELY_HOSTS, steps_max=12),
        )
        for machine in MACHINES
        if machine is not INGRESS
    )
)


@examples(250)
@given(LIVES)
def test_facts_and_snapshots_hold_all_that_was_decided_upon(
    life: tuple[Machine[Any], Edition, list[Any]],
) -> None:
    machine, edition, steps = life
    History(machine, CODEC, edition, on_host(machine.initial, LISTENING)).live(steps).check()


@given(histories(INGRESS, POOLS, steps_max=8))
def test_classification_never_changes_anything(steps: list[Any]) -> None:
    history = History(INGRESS, CODEC, initial=LISTENING).live(steps)
    assert history.state == LISTENING
    history.check()


@named
def test_folding_a_row_never_fails_whatever_the_state(machine: Machine[Any]) -> None:
    for row in machine.transitions:
        params = every_ask(machine, row.on, POOLS)[-1]
        fact = replace(machine.candidate(row.on, params), row=row.name)
        for state in every_state(machine):
            before = variables(state)
            after = machine.evolve(state, fact)
            assert machine.evolve(state, fact) == after
            machine.effects(after, fact)
            assert all(holds(after) for holds in machine.invariants)
            assert variables(state) == before


def reachable(machine: Machine[Any]) -> dict[Any, int]:
    """Every state there is a way to, with the shortest; the host stays what it is."""
    start = on_host(machine.initial, LISTENING)
    found, open_states = {encode_state(start): 0}, deque([(start, 0)])
    while open_states:
        state, steps = open_states.popleft()
        for on in machine.inputs:
            for params in every_ask(machine, on, POOLS):
                draft = machine.candidate(on, params)
                try:
                    fact = machine.decide(state, on, draft)
                except TransitionRejected:
                    continue
                after = machine.evolve(state, fact)
                broken = [holds.__name__ for holds in machine.invariants if not holds(after)]
                assert not broken, (after, broken)
                if encode_state(after) not in found:
                    found[encode_state(after)] = steps + 1
                    open_states.append((after, steps + 1))
    return found


@pytest.mark.parametrize(
    ("machine", "states", "depth"),
    [(DRAIN, 11, 2), (OUTBOUND, 9, 4), (INBOUND, 4, 2), (STREAMS, 9, 4), (CONTEXT, 5, 1)],
    ids=lambda value: getattr(value, "name", None),
)
def test_all_there_is_a_way_to_is_found_and_breaks_no_invariant(
    machine: Machine[Any], states: int, depth: int
) -> None:
    found = reachable(machine)
    assert (len(found), max(found.values())) == (states, depth)
