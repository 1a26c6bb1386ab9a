"""Traces: inputs to any machines, one after the other, in one session with one host.

The contract of ``rookery machine run``: names are those of ``machines.json``; a refused step has a
reply like any other; an invalid trace is refused as a whole. States and effects are JSON in these
words: enums become their variants, sets become sorted lists, maps become objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.kernel.machines import (
    Edition,
    Machine,
    SessionHost,
    TransitionEffect,
    TransitionRejected,
    host_of,
    with_host,
)
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE, candidate, observed_turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.errors import Refused
from rookery.schemas.scalars import Variant

__all__ = [
    "InitialState",
    "Trace",
    "TraceSession",
    "TraceStep",
    "machine_named",
    "read_traces",
    "run_trace",
    "spell_effect",
    "to_plain",
    "variables",
]


def to_plain(value: Any) -> Any:
    """``value`` as JSON."""
    if isinstance(value, Variant):
        return value.variant
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(to_plain(member) for member in value)
    if isinstance(value, Mapping):
        return {key: to_plain(value[key]) for key in sorted(value)}
    if isinstance(value, msgspec.Struct):
        return {name: to_plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


def variables(machine: Machine[Any], state: Any) -> dict[str, Any]:
    """A machine's own variables, with its phase or the map that replaces it. The host's variables
    belong to session_lifecycle; a machine that uses the host's phase has no other variables."""
    shown: dict[str, Any] = to_plain(state)
    if isinstance(state, SessionHost) and machine is not LIFECYCLE:
        return {"phase": shown["phase"]}
    shown.pop("host", None)
    return shown


def spell_effect(effect: TransitionEffect) -> dict[str, Any]:
    """The effect's name, and its fields in their order."""
    return {"name": effect.__struct_config__.tag, "fields": to_plain(effect)}


StepReply = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)


class _TracePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of a trace's parts."""


class InitialState(_TracePart, frozen=True, kw_only=True):
    """The state before the first step; machines left out are in their initial state."""

    host: dict[str, Any] = {}
    state: dict[str, dict[str, Any]] = {}


class TraceStep(_TracePart, frozen=True, kw_only=True):
    """One input."""

    machine: str
    input: str
    params: dict[str, Any] = {}


class Trace(_TracePart, frozen=True, kw_only=True):
    """One session's history."""

    edition: Edition | None = None
    given: InitialState = InitialState()
    steps: tuple[TraceStep, ...] = ()


DEFAULT_STATE: Final = InitialState()


class TraceSession:
    """All machines of one session; they share its host."""

    def __init__(
        self, edition: Edition = Edition.HEAD, given: InitialState = DEFAULT_STATE
    ) -> None:
        self.edition = edition
        self.host = _with(SessionHost(), given.host)
        self._states: dict[str, Any] = {}
        for name, values in given.state.items():
            machine = machine_named(name)
            self._set_state(machine, _with(self.state(machine), values))

    def state(self, machine: Machine[Any]) -> Any:
        """The state of ``machine`` with the present host."""
        return with_host(self._states.get(machine.name, machine.initial), self.host)

    def step(self, step: TraceStep) -> StepReply:
        """Apply an input to its machine; the reply."""
        machine = machine_named(step.machine)
        try:
            fact = self._decide(machine, step)
        except TransitionRejected as rejected:
            return {"ok": False, "rejection": _rejection(rejected), **self._view(machine)}
        state = machine.evolve(self.state(machine), fact)
        self._set_state(machine, state)
        effects = [spell_effect(effect) for effect in machine.effects(state, fact)]
        return {"ok": True, "effects": effects, **self._view(machine)}

    def _decide(self, machine: Machine[Any], step: TraceStep) -> Any:
        seen = observed_turn(machine, step.input, self.state(TURN))
        proposed = candidate(machine, step.input, step.params, seen)
        if missing := [
            name for name in machine.inputs[step.input].params if name not in step.params
        ]:
            raise Refused("INVALID_ARGUMENT", f"{step.input} needs {', '.join(missing)}")
        return machine.decide(self.state(machine), step.input, proposed, edition=self.edition)

    def _set_state(self, machine: Machine[Any], state: Any) -> None:
        self._states[machine.name] = state
        self.host = host_of(state) or self.host

    def _view(self, machine: Machine[Any]) -> StepReply:
        return {"state": variables(machine, self.state(machine)), "host": to_plain(self.host)}


def machine_named(name: str) -> Machine[Any]:
    """The machine, or ``INVALID_ARGUMENT``."""
    if name not in MACHINE_CATALOGUE:
        known = ", ".join(MACHINE_CATALOGUE)
        raise Refused("INVALID_ARGUMENT", f"there is no machine {name!r}", hint=f"one of {known}")
    return MACHINE_CATALOGUE[name].machine


def read_traces(text: bytes) -> Trace | list[Trace]:
    """A trace, or a list of them."""
    try:
        return msgspec.json.decode(text, type=Trace | list[Trace])
    except msgspec.DecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"not a trace: {error}") from None


def run_trace(trace: Trace, edition: Edition = Edition.HEAD) -> list[StepReply]:
    """The reply to every step. ``edition`` applies to a trace that names none."""
    with _error_location("given"):
        session = TraceSession(trace.edition or edition, trace.given)
    answers = []
    for number, step in enumerate(trace.steps):
        with _error_location(f"steps[{number}]"):
            answers.append(session.step(step))
    return answers


@contextmanager
def _error_location(where: str) -> Iterator[None]:
    """Prefix refusals with their place in the trace."""
    try:
        yield
    except Refused as refused:
        message = f"{where}: {refused.message}"
        raise Refused("INVALID_ARGUMENT", message, hint=refused.hint) from None


def _with(state: S, values: Mapping[str, Any]) -> S:
    """``state`` with these variables from JSON."""
    known = [name for name in state.__struct_fields__ if name != "host"]
    if unknown := sorted(values.keys() - set(known)):
        hint = f"one of {', '.join(known)}"
        raise Refused("INVALID_ARGUMENT", f"there is no variable {unknown[0]!r}", hint=hint)
    try:
        given = Machine.state_of(values, type(state))
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from None
    return msgspec.structs.replace(state, **{name: getattr(given, name) for name in values})


def _rejection(rejected: TransitionRejected) -> StepReply:
    return {
        "kind": rejected.kind.value,
        "context": rejected.context,
        "reason": rejected.reason,
    }
