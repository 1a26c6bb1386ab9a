"""What admission observes of a turn that a client drives, against the turn's machine."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from rookery.actors.admission.state import NO_TURN, observe_turn
from rookery.actors.kernel.machines import SessionHost
from rookery.actors.kernel.machines.machine import IDLE, RUNNING, Edition, TransitionRejected
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE, candidates
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.machines.turn import TurnPhase

STEPS = 30_000
HOST = SessionHost(phase=RUNNING, current_run_id="run-1", pre_run_phase=IDLE, session_id="s")


@pytest.mark.parametrize("edition", Edition)
def test_admission_knows_whether_a_turn_goes_on_and_how_it_ended(edition: Edition) -> None:
    """A turn goes the ways of its machine; every row that may fire does."""
    rng, entry, fired = random.Random(7), MACHINE_CATALOGUE["turn_execution"], set[str]()
    drafts = {on: list(candidates(entry, TURN, on)) for on in TURN.inputs}
    turn, observed = Turn(host=HOST), NO_TURN
    for _ in range(STEPS):
        on = rng.choice(list(drafts))
        with suppress(TransitionRejected):
            fact = TURN.decide(turn, on, rng.choice(drafts[on]), edition=edition)
            after = TURN.evolve(turn, fact)
            ends = after.phase.is_terminal or after.phase is TurnPhase.CANCELLING
            if fact.row in fired and ends and rng.random() < 0.9:
                continue  # Most turns go on for long.
            turn, observed = after, observe_turn(observed, fact)
            turn = turn if turn.host.phase is RUNNING else Turn(host=HOST)
            fired.add(fact.row)
            begun = turn.phase is not TurnPhase.READY
            assert observed.in_progress is (begun and not turn.phase.is_terminal), fact
            if turn.phase.is_terminal:
                assert observed.phase == turn.phase, fact
            if turn.phase is TurnPhase.FAILED:
                cause = turn.terminal_cause_kind
                assert cause is not None
                assert observed.terminal_cause_kind == cause.variant, fact
    rows = {row.name for row in TURN.transitions if row.edition in (None, edition)}
    assert len(fired) > 0.9 * len(rows), rows - fired
