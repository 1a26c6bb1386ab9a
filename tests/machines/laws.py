"""What holds of any history of any machine, whatever its rules are.

A history is a list of inputs with their parameters, and of hosts the session has come to meanwhile;
what a machine refuses leaves no trace in it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.machines.machine import Edition, Machine, SessionHost, TransitionRejected
from rookery.schemas.codec import FactCodec, encode_facts

Asked = tuple[str, Mapping[str, Any]]
Pools = Mapping[str, tuple[Any, ...]]
"""Values of a parameter by its name, or by ``input.parameter`` where one input wants others."""


def every_ask(machine: Machine[Any], on: str, pools: Pools) -> list[dict[str, Any]]:
    """Every combination of an input's parameters."""
    names = machine.inputs[on].params
    values = (pools.get(f"{on}.{name}", pools.get(name, ())) for name in names)
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def histories(
    machine: Machine[Any], pools: Pools, hosts: Iterable[SessionHost] = (), *, steps_max: int = 30
) -> st.SearchStrategy[list[Any]]:
    """Any inputs in any order, and between them any of the hosts."""
    asked = [(on, params) for on in machine.inputs for params in every_ask(machine, on, pools)]
    by_input = st.sampled_from(sorted(machine.inputs)).flatmap(
        lambda on: st.sampled_from([ask for ask in asked if ask[0] == on])
    )
    step: st.SearchStrategy[Any] = by_input
    if hosts := list(hosts):
        step = st.one_of(by_input, by_input, by_input, by_input, st.sampled_from(hosts))
    return st.lists(step, max_size=steps_max)


def likely_ask(
    rng: random.Random,
    machine: Machine[Any],
    state: Any,
    asked: Mapping[str, list[dict[str, Any]]],
    *,
    edition: Edition = Edition.HEAD,
    rarely: Collection[str] = (),
) -> Asked:
    """Three times out of four something the state takes, and seldom one of the inputs that end
    what goes on: histories are to get somewhere."""
    inputs = list(asked)
    rng.shuffle(inputs)
    inputs.sort(key=lambda on: on in rarely and rng.random() < 0.9)
    for on in inputs if rng.random() < 0.75 else ():
        params = rng.choice(asked[on])
        with suppress(TransitionRejected):
            machine.decide(state, on, machine.candidate(on, params), edition=edition)
            return on, params
    on = rng.choice(inputs)
    return on, rng.choice(asked[on])


class History:
    """What became of a list of steps: the accepted facts, as the journal gives them back."""

    def __init__(
        self,
        machine: Machine[Any],
        codec: FactCodec[Any],
        edition: Edition = Edition.HEAD,
        initial: Any = None,
    ) -> None:
        self.machine, self.edition, self._codec = machine, edition, codec
        self.initial = machine.initial if initial is None else initial
        self.state = self.initial
        self.told: list[Any] = []

    def live(self, steps: Iterable[Any]) -> History:
        for step in steps:
            if isinstance(step, SessionHost):
                self._note(step)
            else:
                self._ask(*step)
        return self

    def _ask(self, on: str, params: Mapping[str, Any]) -> None:
        before = encode_state(self.state)
        fact = None
        with suppress(TransitionRejected):
            fact = self._decide(on, params)
            assert self._decide(on, params) == fact
        assert encode_state(self.state) == before
        if fact is not None:
            (stored,) = self._codec.decode(encode_facts([fact]))
            assert stored == fact
            self._note(stored)

    def _decide(self, on: str, params: Mapping[str, Any]) -> Any:
        draft = self.machine.candidate(on, params)
        return self.machine.decide(self.state, on, draft, edition=self.edition)

    def _note(self, told: Any) -> None:
        self.told.append(told)
        self.state = self._fold(self.state, told)
        for holds in self.machine.invariants:
            assert holds(self.state), holds.__name__

    def _fold(self, state: Any, told: Any) -> Any:
        if isinstance(told, SessionHost):
            return replace(state, host=told)
        return self.machine.evolve(state, told)

    def check(self) -> None:
        """Folding is what was decided upon, from the beginning or from any snapshot."""
        assert reduce(self._fold, self.told, self.initial) == self.state
        for cut in range(len(self.told) + 1):
            early = reduce(self._fold, self.told[:cut], self.initial)
            loaded = decode_state(encode_state(early), type(self.initial))
            assert loaded == early
            assert reduce(self._fold, self.told[cut:], loaded) == self.state
