"""The state machines alone: deciding and folding one input, relative to copying the state once.

Exploring each machine finds, for every transition, a state that accepts its input. The bench needs
no journal and no server.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from rookery.actors.kernel.machines import Machine, TransitionRejected, with_host
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE, candidates
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_TURN = "turn_execution"
_TIMES = 2_000
_REPEATS = 5
_STATES_MAX = 20_000


class _SampledInput(NamedTuple):
    """A transition that fires: its input, and a state that accepts it."""

    state: Any
    on: str
    proposed: Any


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return tuple(line for name in MACHINE_CATALOGUE for line in _lines(name))


def _lines(name: str) -> tuple[Figure, ...]:
    step, slowest, copy = _names(name)
    at_most = 4 if name == _TURN else None
    return (
        Figure(step, "ns", copy, at_most=at_most),
        Figure(slowest, "ns", copy),
        Figure(copy, "ns"),
    )


def _names(name: str) -> tuple[str, str, str]:
    return f"{name}, a step", f"{name}, its slowest row", f"{name}, one replace"


def measure(harness: Harness) -> Round:
    times = harness.count(_TIMES)
    measured: dict[str, float] = {}
    gc.disable()
    try:
        for name, entry in MACHINE_CATALOGUE.items():
            taken = _every_row(name)
            steps = [_fastest_ns(partial(_step, entry.machine, *row), times) for row in taken]
            copies = [_fastest_ns(_copying(row.state), times) for row in taken]
            step, slowest, copy = _names(name)
            measured |= {step: mean(steps), slowest: max(steps), copy: mean(copies)}
    finally:
        gc.enable()
    return measured


def _step(machine: Machine[Any], state: Any, on: str, proposed: Any) -> Any:
    return machine.evolve(state, machine.decide(state, on, proposed))


def _copying(state: Any) -> Callable[[], Any]:
    """A copy with one variable set to its present value."""
    name = state.__struct_fields__[0]
    return partial(replace, state, **{name: getattr(state, name)})


def _fastest_ns(act: Callable[[], Any], times: int) -> float:
    """The time of one call in the best of several rounds; other load can only slow a round."""
    fastest = float("inf")
    for _ in range(_REPEATS):
        start_s = perf_counter()
        for _ in range(times):
            act()
        fastest = min(fastest, perf_counter() - start_s)
    return fastest / times * 1e9


@cache
def _every_row(name: str) -> tuple[_SampledInput, ...]:
    """The transitions that histories reach, each at its first state."""
    entry = MACHINE_CATALOGUE[name]
    wanted = {row.name for row in entry.machine.transitions}
    proposed = [(m, on, a) for m in (entry.machine, *entry.companions) for on in m.inputs
             for a in candidates(entry, m, on)]  # fmt: skip
    taken: dict[str, _SampledInput] = {}
    found, open_states = {entry.machine.initial}, deque([entry.machine.initial])
    while open_states and taken.keys() != wanted and len(found) < _STATES_MAX:
        state = open_states.popleft()
        afters = [with_host(state, host) for host in entry.hosts]
        for machine, on, draft in proposed:
            if (fact := _decided(machine, state, on, draft)) is None:
                continue
            if machine is entry.machine:
                taken.setdefault(fact.row, _SampledInput(state, on, fact))
            afters.append(machine.evolve(state, fact))
        for after in afters:
            if after not in found and entry.within(after):
                found.add(after)
                open_states.append(after)
    return tuple(taken.values())


def _decided(machine: Machine[Any], state: Any, on: str, draft: Any) -> Any | None:
    try:
        return machine.decide(state, on, replace(draft))
    except TransitionRejected:
        return None
