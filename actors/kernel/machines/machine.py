"""Rows: one line of a machine's rules each. What every machine shares, and no rule.

A row is three plain functions beside each other: ``when`` it takes an input, what state it makes
(``then``), what it asks of the world (``effects``, in the words of the state after it). The first
row of an input whose ``when`` holds takes it and is named in the fact; folding applies the row a
fact names and never asks ``when`` again, so rules may change without history changing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from rookery.schemas.errors import Failed, Refused

__all__ = [
    "HEAD",
    "SEED",
    "Edition",
    "Machine",
    "MachineInput",
    "RejectionKind",
    "Transition",
    "TransitionEffect",
    "TransitionRejected",
    "set_fields",
]

S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F", bound=msgspec.Struct)

_FIELDS: Final = {"run_id": "run", "generation": "generation_in", "cause": "cause_in"}
"""Parameters whose fact field is called otherwise: the envelope has the run, and a ``generation``
and a ``cause`` of its own."""


class Edition(StrEnum):
    """Which rows decide: the seed's alone, or those of HEAD that extend or replace them."""

    SEED = "seed"
    HEAD = "head"


SEED, HEAD = Edition


class RejectionKind(StrEnum):
    """Whether the state refuses the input (it may be fine later) or no rule knows it."""

    GUARD_REJECTED = "GuardRejected"
    NO_MATCHING_TRANSITION = "NoMatchingTransition"


_CODES = {
    RejectionKind.GUARD_REJECTED: "GUARD_REJECTED",
    RejectionKind.NO_MATCHING_TRANSITION: "NO_MATCHING_TRANSITION",
}


class TransitionRejected(Refused):
    """An input a machine does not take. ``str`` is the display form of the contract."""

    def __init__(
        self,
        context: str,
        reason: str,
        kind: RejectionKind = RejectionKind.NO_MATCHING_TRANSITION,
        hint: str = "",
    ) -> None:
        super().__init__(_CODES[kind], f"DSL transition rejected in {context}: {reason}", hint=hint)
        self.context, self.reason, self.kind = context, reason, kind
        self.details = {"kind": kind, "context": context, "reason": reason}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.context, self.reason, self.kind, self.hint))


class TransitionEffect(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag=True):
    """What a row asks of the world; nobody has done it yet."""


class MachineInput(NamedTuple):
    """What a machine can be asked: the fact an accepted one leaves, and its parameters."""

    fact: type[Any]
    params: tuple[str, ...] = ()


def _unchanged(state: Any, _: Any) -> Any:
    return state


class Transition(NamedTuple):
    """One line of the rules."""

    name: str
    on: str
    guard: Callable[[Any, Any], bool]
    apply: Callable[[Any, Any], Any] = _unchanged
    effects: tuple[TransitionEffect | Callable[[Any, Any], TransitionEffect], ...] = ()
    edition: Edition | None = None
    """``None`` in both."""


def set_fields(**changes: Any) -> Callable[[Any, Any], Any]:
    """The ``then`` that sets these variables to these values."""
    return lambda state, _: replace(state, **changes)


class Machine(Generic[S]):
    """The rows of one machine, with the names it is known by."""

    def __init__(
        self,
        name: str,
        *,
        handle: str,
        phases: tuple[str, ...],
        initial: S,
        inputs: Mapping[str, MachineInput],
        rows: tuple[Transition, ...],
        invariants: tuple[Callable[[S], bool], ...] = (),
        phase: Callable[[Any, Any], str] = lambda state, _: state.phase,
        host_phase: Callable[[Any], str | None] = lambda _: None,
    ) -> None:
        self.name, self.handle, self.phases, self.initial = name, handle, phases, initial
        self.inputs, self.transitions, self.invariants = dict(inputs), rows, invariants
        self.phase = phase
        """Where a state stands; where it holds many instances, the one the parameters mean."""
        self._host_phase = host_phase
        self._apply: dict[str, Callable[[S, Any], S]] = {row.name: row.apply for row in rows}
        self._effects = {row.name: row.effects for row in rows}
        assert len(self._apply) == len(rows), f"two rows of {name} share a name"
        self._seed, self._head = (
            {
                on: tuple(
                    (r.guard, r.name) for r in rows if r.on == on and r.edition in (None, its)
                )
                for on in inputs
            }
            for its in Edition
        )

    def candidate(self, on: str, params: Mapping[str, Any]) -> Any:
        """The fact ``on`` would leave, from parameters by their names; no row is named yet."""
        asked = self._input(on)
        if unknown := sorted(params.keys() - set(asked.params)):
            raise Refused("UNKNOWN_FIELD", f"{on} has no parameter {unknown[0]!r}")
        fields = {_FIELDS.get(name, name): value for name, value in params.items()}
        try:
            return msgspec.convert(fields, asked.fact)
        except msgspec.ValidationError as error:
            raise Refused("INVALID_ARGUMENT", f"{on}: {error}") from None

    def decide(self, state: S, on: str, draft: F, *, edition: Edition = HEAD) -> F:
        """``draft`` as the fact of the row that takes it, or a rejection.

        The draft is the caller's own and nobody has seen it: naming its row in place costs a third
        of a copy, and deciding again says the same.
        """
        rows = self._head if edition is HEAD else self._seed
        for when, name in rows.get(on, ()):
            if when(state, draft):
                force_setattr(draft, "row", name)
                return draft
        raise self._rejection(state, on, draft, known=bool(rows.get(on)))

    def evolve(self, state: S, fact: Any) -> S:
        """The state after ``fact``. Total over states: history is true, so nothing is checked."""
        then = self._apply.get(fact.row)
        if then is None:
            raise self._unknown_transition(fact)
        return then(state, fact)

    def effects(self, state: S, fact: Any) -> tuple[TransitionEffect, ...]:
        """What the row of ``fact`` asks of the world; ``state`` is the one after it."""
        effects = self._effects.get(fact.row)
        if effects is None:
            raise self._unknown_transition(fact)
        return tuple(
            effect if isinstance(effect, TransitionEffect) else effect(state, fact)
            for effect in effects
        )

    def _unknown_transition(self, fact: Any) -> Failed:
        return Failed(
            "FACT_UNKNOWN",
            f"{self.name} has no row {fact.row!r} for {type(fact).__name__}",
            hint="a newer version may have written it",
        )

    def _input(self, on: str) -> MachineInput:
        asked = self.inputs.get(on)
        if asked is None:
            raise TransitionRejected(f"{self.handle}::{on}", f"{self.name} has no input {on}")
        return asked

    def _rejection(self, state: S, on: str, draft: Any, *, known: bool) -> TransitionRejected:
        phase = self._host_phase(state) or self.phase(state, draft)
        context = f"{self.handle}::{on}"
        if not known:
            return TransitionRejected(
                context, f"no matching transition from phase {phase} for {on}"
            )
        return TransitionRejected(
            context,
            f"guard rejected transition from phase {phase} for {on}",
            RejectionKind.GUARD_REJECTED,
        )
