"""Puts one of our machines beside the oracle and asks both the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rookery.actors.kernel.machines.machine import (
    Edition,
    Machine,
    RejectionKind,
    SessionHost,
    TransitionRejected,
)
from rookery.schemas.scalars import Variant
from tests.machines.oracle import Oracle, Step, Variables

GUARD_REJECTED, NO_MATCHING_TRANSITION = RejectionKind


def variables(struct: Any) -> Variables:
    """A state as the model writes it: plain sets and dictionaries."""
    return {name: _plain(getattr(struct, name)) for name in struct.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, Variant):
        return value.variant
    if isinstance(value, frozenset):
        return set(value)
    if isinstance(value, Mapping):
        return {key: _plain(found) for key, found in value.items()}
    if isinstance(value, msgspec.Struct):
        return variables(value)
    return value


class Judged:
    """A machine and its oracle."""

    def __init__(self, machine: Machine[Any], edition: Edition = Edition.HEAD) -> None:
        self.machine, self.edition = machine, edition
        self.oracle = Oracle(machine.name, edition)
        self.hit: set[str] = set()
        self.accepted = 0

    def step(self, state: Any, on: str, params: Variables, **observed: Any) -> Any:
        """The state after, which is ``state`` if both refuse; fails where they differ."""
        own, host = self._split(state)
        expected = self.oracle.step(own, host, on, {**params, **observed})
        draft = self.machine.candidate(on, params)
        for name, value in observed.items():
            draft = type(draft)(**{**variables(draft), name: value})
        if expected.row is None:
            with pytest.raises(TransitionRejected) as rejected:
                self.machine.decide(state, on, draft, edition=self.edition)
            known = on in self.oracle.inputs
            assert rejected.value.kind is (GUARD_REJECTED if known else NO_MATCHING_TRANSITION)
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
        self.accepted += 1
        return after

    @staticmethod
    def _split(state: Any) -> tuple[Variables, Variables]:
        """The machine's own variables and the host's."""
        if isinstance(state, SessionHost):
            return {}, variables(state)
        own = variables(state)
        host = own.pop("host", {})
        return own, host
