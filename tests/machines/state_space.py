"""Every state a machine can come to from its beginning, nearest first, each with its distance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rookery.actors.kernel.machines.machine import Machine, TransitionRejected
from tests.machines.laws import Pools, every_ask


def explored(
    machine: Machine[Any],
    pools: Pools,
    initial: Any,
    within: Callable[[Any], bool] = lambda _: True,
) -> dict[Any, int]:
    """``within`` says how far to go; what lies outside is neither kept nor gone on from. Every
    state that is found holds the machine's invariants."""
    asked = [(on, params) for on in machine.inputs for params in every_ask(machine, on, pools)]
    found, open_states = {initial: 0}, deque([initial])
    while open_states:
        state = open_states.popleft()
        for on, params in asked:
            with suppress(TransitionRejected):
                fact = machine.decide(state, on, machine.candidate(on, params))
                after = machine.evolve(state, fact)
                if after in found or not within(after):
                    continue
                broken = [holds.__name__ for holds in machine.invariants if not holds(after)]
                assert not broken, (state, fact, broken)
                found[after] = found[state] + 1
                open_states.append(after)
    return found
