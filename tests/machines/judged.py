"""Puts one of our machines beside the oracle and asks both the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rookery.actors.kernel.host import Host
from rookery.actors.kernel.rows import Edition, Machine, RejectionKind, TransitionRejected
from tests.machines.oracle import Oracle, Step, Variables


def variables(struct: Any) -> Variables:
    """A state as the model writes it: plain sets and dictionaries."""
    return {name: _plain(getattr(struct, name)) for name in struct.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return set(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value


class Judged:
    """A machine and its oracle."""

    def __init__(self, machine: Machine[Any], edition: Edition = Edition.HEAD) -> None:
        self.machine, self.edition = machine, edition
        self.oracle = Oracle(machine.name, edition)
        self.hit: set[str] = set()

    def step(self, state: Any, on: str, params: Variables, **observed: Any) -> Any:
        """The state after, which is ``state`` if both refuse; fails where they differ."""
        own, host = self._split(state)
        expected = self.oracle.step(own, host, on, {**params, **observed})
        draft = self.machine.draft(on, params)
        for name, value in observed.items():
            draft = type(draft)(**{**variables(draft), name: value})
        if expected.row is None:
            with pytest.raises(TransitionRejected) as rejected:
                self.machine.decide(state, on, draft, edition=self.edition)
            assert rejected.value.kind is RejectionKind.GUARD_REJECTED
            return state
        fact = self.machine.decide(state, on, draft, edition=self.edition)
        assert self.machine.decide(state, on, draft, edition=self.edition) == fact
        assert fact.row == expected.row, (state, on, params, expected)
        return self._same_outcome(state, fact, expected)

    def _same_outcome(self, state: Any, fact: Any, expected: Step) -> Any:
        after = self.machine.evolve(state, fact)
        assert self._split(after) == (expected.state, expected.host), (state, fact)
        effects = self.machine.effects(after, fact)
        told = [(effect.__struct_config__.tag, variables(effect)) for effect in effects]
        assert told == expected.effects, (state, fact)
        self.hit.add(fact.row)
        return after

    @staticmethod
    def _split(state: Any) -> tuple[Variables, Variables]:
        """The machine's own variables and the host's."""
        if isinstance(state, Host):
            return {}, variables(state)
        own = variables(state)
        host = own.pop("host", None)
        return own, variables(host) if host is not None else {}
