"""``Machine``: a state machine as a table of transitions; and the session's host that all read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.decider import decode_map
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.machines.transition import RejectionKind, TransitionEffect, TransitionRejected

__all__ = [
    "ATTACHED",
    "DESTROYED",
    "HEAD",
    "IDLE",
    "INITIALIZING",
    "LIVE",
    "RETIRED",
    "RUNNING",
    "SEED",
    "STOPPED",
    "Edition",
    "HostPhase",
    "Machine",
    "MachineInput",
    "RegistrationPhase",
    "RejectionKind",
    "SessionHost",
    "Transition",
    "TransitionEffect",
    "TransitionRejected",
    "host_of",
    "session_registered",
    "set_fields",
    "with_host",
]

# --- machine --------------------------------------------------------------------------------------

# A transition is three plain functions: ``guard`` (does it accept the input), ``apply`` (the next
# state) and ``effects`` (what it requests, from the state after it). The first transition of an
# input whose guard holds is named in the fact. Folding applies the named transition without its
# guard, so guards may change while history stays valid.


S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F", bound=msgspec.Struct)

_FIELDS: Final = {"run_id": "run", "generation": "generation_in", "cause": "cause_in"}
"""Parameters whose fact field has another name, because the envelope has ``run``, ``generation``
and ``cause`` fields of its own."""


class Edition(StrEnum):
    """Which transitions decide: those of the seed, or those of HEAD, which extend and replace
    them."""

    SEED = "seed"
    HEAD = "head"


SEED, HEAD = Edition


class MachineInput(NamedTuple):
    """An input of a machine: the type of the fact it leaves, and its parameters."""

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
    """``None``: in both editions."""


def set_fields(**changes: Any) -> Callable[[Any, Any], Any]:
    """An ``apply`` that sets these fields to these values."""
    return lambda state, _: replace(state, **changes)


class Machine(Generic[S]):
    """The transitions of one machine, and the names of its parts."""

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
        """The phase of a state; of the instance that the parameters name, if the state has several.
        """
        self._host_phase = host_phase
        self._plain_params = {
            on: frozenset(declared.params).difference(_FIELDS) for on, declared in inputs.items()
        }
        """Of each input, the parameters whose fact field has the same name."""
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

    @staticmethod
    def state_of(values: Mapping[str, Any], kind: type[S]) -> S:
        """A state of plain values, such as those of JSON; raises msgspec's ``ValidationError``."""
        return msgspec.convert(values, kind, dec_hook=decode_map)

    def candidate(self, on: str, params: Mapping[str, Any]) -> Any:
        """The fact that ``on`` would leave, from named parameters, without a transition's name."""
        declared = self.inputs.get(on) or self._input(on)
        if not params and not declared.params:
            return declared.fact()
        fields = params
        if not params.keys() <= self._plain_params[on]:
            if unknown := sorted(params.keys() - set(declared.params)):
                raise Refused("UNKNOWN_FIELD", f"{on} has no parameter {unknown[0]!r}")
            fields = {_FIELDS.get(name, name): value for name, value in params.items()}
        try:
            return msgspec.convert(fields, declared.fact)
        except msgspec.ValidationError as error:
            raise Refused("INVALID_ARGUMENT", f"{on}: {error}") from None

    def decide(self, state: S, on: str, candidate: F, *, edition: Edition = HEAD) -> F:
        """The candidate with the name of the transition that accepts it, or a rejection.

        The candidate is changed in place, which costs a third of a copy: it is the caller's own and
        new. Deciding it again gives the same name.
        """
        rows = self._head if edition is HEAD else self._seed
        for guard, name in rows.get(on, ()):
            if guard(state, candidate):
                force_setattr(candidate, "row", name)
                return candidate
        raise self._rejection(state, on, candidate, known=bool(rows.get(on)))

    def evolve(self, state: S, fact: Any) -> S:
        """The state after ``fact``. Total: facts are history, so no guard is checked."""
        apply = self._apply.get(fact.row)
        if apply is None:
            raise self._unknown_transition(fact)
        return apply(state, fact)

    def effects(self, state: S, fact: Any) -> tuple[TransitionEffect, ...]:
        """The effects of the transition that ``fact`` names; ``state`` is the one after it."""
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
        declared = self.inputs.get(on)
        if declared is None:
            raise TransitionRejected(f"{self.handle}::{on}", f"{self.name} has no input {on}")
        return declared

    def _rejection(self, state: S, on: str, candidate: Any, *, known: bool) -> TransitionRejected:
        phase = self._host_phase(state) or self.phase(state, candidate)
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


# --- session host ---------------------------------------------------------------------------------

# ``SessionHost``: the session lifecycle state that all machines of a session read.
#
# Admission alone writes it. Every other decider follows it from admission's facts
# (``rookery.actors.admission.admission_machine.evolve_host``), so the type is part of the kernel.


class HostPhase(StrEnum):
    """Destroyed is final. A Stopped session works again only after it is unregistered."""

    INITIALIZING = "Initializing"
    IDLE = "Idle"
    ATTACHED = "Attached"
    RUNNING = "Running"
    RETIRED = "Retired"
    STOPPED = "Stopped"
    DESTROYED = "Destroyed"


INITIALIZING, IDLE, ATTACHED, RUNNING, RETIRED, STOPPED, DESTROYED = HostPhase
LIVE = (IDLE, ATTACHED, RUNNING, RETIRED, STOPPED)


class RegistrationPhase(StrEnum):
    """Whether an executor is registered for the session."""

    QUEUING = "Queuing"
    ACTIVE = "Active"


class SessionHost(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of session_lifecycle."""

    phase: HostPhase = INITIALIZING
    session_id: str | None = None
    active_runtime_id: str | None = None
    active_fence_token: int | None = None
    current_run_id: str | None = None
    pre_run_phase: HostPhase | None = None
    """The phase that the current run returns to: Idle, Attached or Retired."""
    registration_phase: RegistrationPhase = RegistrationPhase.QUEUING
    silent_intents: frozenset[str] = frozenset()


def session_registered(host: SessionHost) -> bool:
    """Guard: a session is registered."""
    return host.session_id is not None


def host_of(state: Any) -> SessionHost | None:
    """The session's host in ``state``; ``None`` for a machine without one."""
    return state if isinstance(state, SessionHost) else getattr(state, "host", None)


def with_host(state: Any, host: SessionHost) -> Any:
    """``state`` with ``host`` as the session's host."""
    if isinstance(state, SessionHost):
        return host
    return replace(state, host=host) if hasattr(state, "host") else state
