"""``MachineDecider``: a decider whose rules are state machines; each machine input is a command.

It finds the machine of an input, folds the machines' facts, builds the replies, and follows the
session's host from admission's facts. A subclass lists its machines, their views and the facts that
must be fenced.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.machines.machine import (
    Machine,
    RejectionKind,
    SessionHost,
    TransitionEffect,
    TransitionRejected,
)
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import session
from rookery.schemas.machines.inputs import InputSender, sender_of
from rookery.schemas.machines.views import RequestedEffect

__all__ = [
    "MachineBinding",
    "MachineDecider",
    "Reservation",
    "SessionMachineDecider",
    "SessionMachineState",
    "reserved_for_run",
]

Params = Mapping[str, Any]


class MachineBinding(NamedTuple):
    """One machine of a decider."""

    machine: Machine[Any]
    field: str
    """The field of the decider's state that contains the machine's state."""
    view: Callable[[Any, Params], msgspec.Struct]
    """The view of the machine's state for these parameters; it has a field for effects."""
    reads: tuple[str, ...] = ()
    """Inputs that only read; they are answered with the view."""
    read_params: tuple[str, ...] = ()


class Reservation(NamedTuple):
    """Why clients may not send the inputs that are reserved for a node."""

    reason: str
    hint: str


def reserved_for_run(run_id: str) -> Reservation:
    """The reservation of a session while a node drives this run of it."""
    return Reservation(f"a node drives run {run_id}", f"rookery runs cancel {run_id}")


class MachineDecider(Decider):
    """The rules of a family whose facts are transitions of machines."""

    bindings: ClassVar[tuple[MachineBinding, ...]]
    fenced_facts: frozenset[type[Fact]] = frozenset()
    """Facts that may only be committed while no other family of the key has unseen facts."""

    def __init__(self) -> None:
        machines = [(binding, binding.machine.inputs) for binding in self.bindings]
        self._inputs = {on: binding for binding, inputs in machines for on in inputs}
        self._reads = {on: binding for binding in self.bindings for on in binding.reads}
        self._by_fact = {
            declared.fact: binding for binding, inputs in machines for declared in inputs.values()
        }
        assert len(self._inputs) == sum(len(inputs) for _, inputs in machines)
        assert not self._inputs.keys() & self._reads.keys()

    def decide(self, state: Any, command: Command[HandleInput], *, now_ms: int) -> Sequence[Fact]:
        del now_ms
        on, params = command.body.input, command.body.params
        read = self._reads.get(on)
        if read is None:
            self._check_sender(state, command)
            return self.decide_input(state, command.key, on, params)
        if unknown := sorted(params.keys() - set(read.read_params)):
            raise Refused("UNKNOWN_FIELD", f"{on} has no parameter {unknown[0]!r}")
        return ()

    def reservation(self, state: Any, command: Command[HandleInput]) -> Reservation | None:
        """Why this command may not have an input that ``MACHINE_INPUTS`` reserves for nodes;
        ``None`` if no node does the machine's work."""
        del state, command
        return None

    def decide_input(self, state: Any, key: str, on: str, params: Params) -> Sequence[Fact]:
        """The facts of an input, or its rejection."""
        del key
        binding = self._inputs.get(on) or self._binding(on)
        machine = binding.machine
        candidate = self.fill_in(state, binding, machine.candidate(on, params))
        fact: Fact = machine.decide(getattr(state, binding.field), on, candidate)
        return (fact,)

    def fill_in(self, state: Any, binding: MachineBinding, candidate: Any) -> Any:
        """The candidate fact, with the fields that its caller cannot know."""
        del state, binding
        return candidate

    def evolve(self, state: Any, fact: Any) -> Any:
        binding = self._by_fact[type(fact)]
        after = binding.machine.evolve(getattr(state, binding.field), fact)
        return replace(state, **{binding.field: after})

    def reply(
        self, state: Any, command: Command[HandleInput], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        on, params = command.body.input, command.body.params
        view = self.view(state, on, params)
        if not facts and on not in self._reads:
            return view
        effects = (effect for fact in facts for effect in self.requested_effects(state, fact))
        return replace(view, effects=tuple(map(_to_requested_effect, effects)))

    def view(self, state: Any, on: str, params: Params) -> msgspec.Struct:
        """The reply to an input or a read: the view of its machine."""
        binding = self._reads.get(on) or self._binding(on)
        return binding.view(getattr(state, binding.field), params)

    def requested_effects(self, state: Any, fact: Any) -> Sequence[TransitionEffect]:
        """The effects that ``fact`` requests; ``state`` is the one after it."""
        binding = self._by_fact[type(fact)]
        return binding.machine.effects(getattr(state, binding.field), fact)

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        return not self.fenced_facts.isdisjoint(map(type, facts))

    def _check_sender(self, state: Any, command: Command[HandleInput]) -> None:
        on = command.body.input
        if sender_of(command.verb, on) is InputSender.CLIENT:
            return
        reserved = self.reservation(state, command)
        if reserved is not None:
            context = f"{self._binding(on).machine.handle}::{on}"
            raise TransitionRejected(
                context, reserved.reason, RejectionKind.GUARD_REJECTED, reserved.hint
            )

    def _binding(self, on: str) -> MachineBinding:
        binding = self._inputs.get(on)
        if binding is None:
            known = ", ".join(sorted([*self._inputs, *self._reads]))
            reason = f"no machine of {self.family} has an input {on[:80]!r}"
            raise TransitionRejected(f"{self.family}::{on[:80]}", reason, hint=f"known: {known}")
        return binding


_PREPARED: Final = frozenset({session.RunPrepared, session.QueuedRunDrained})


class SessionMachineState(msgspec.Struct, frozen=True, kw_only=True):
    """What every decider of session machines keeps beside their states."""

    host: SessionHost = SessionHost()
    """The host, from admission's facts received so far."""
    generation: int = 1
    """The session generation of the machines' states; a new generation resets them."""
    requested_run_id: str | None = None
    """The last run that admission prepared for a request; a node drives it while it is current.
    A driver outside drives a run without a request."""


class SessionMachineDecider(MachineDecider):
    """The rules of a family whose machines read their session's host.

    Facts of the family and of admission may be folded in any order: a machine's state depends on
    the host only where it *is* the host, and each fact names its session generation.
    """

    observes = frozenset({"session"})
    initial_state: SessionMachineState

    def __init__(self, *, executes_runs: bool = False) -> None:
        """``executes_runs``: this node drives the runs of its sessions that clients requested."""
        super().__init__()
        self._executes_runs = executes_runs
        fields = [binding.field for binding in self.bindings]
        self._hosted_fields = [f for f in fields if hasattr(getattr(self.initial_state, f), "host")]

    @abstractmethod
    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        """The host after a fact of admission."""

    def reservation(self, state: Any, command: Command[HandleInput]) -> Reservation | None:
        del command
        run_id = state.host.current_run_id
        is_driven = self._executes_runs and run_id is not None and run_id == state.requested_run_id
        return reserved_for_run(run_id) if is_driven else None

    def fill_in(self, state: Any, binding: MachineBinding, candidate: Any) -> Any:
        del binding
        force_setattr(candidate, "generation", state.generation)
        return candidate

    def evolve(self, state: Any, fact: Any) -> Any:
        if fact.generation > state.generation:
            state = self.begin_generation(state, fact.generation)
        return MachineDecider.evolve(self, state, fact)

    def observe(self, state: Any, fact: Any) -> Any:
        if fact.generation > state.generation:
            state = self.begin_generation(state, fact.generation)
        if type(fact) in _PREPARED and fact.input_id is not UNSET:
            state = replace(state, requested_run_id=fact.run)
        return self.with_host(state, self.evolve_host(state.host, fact))

    def with_host(self, state: Any, host: SessionHost) -> Any:
        """The state with ``host`` set in it and in every machine's state."""
        hosted = {f: replace(getattr(state, f), host=host) for f in self._hosted_fields}
        return replace(state, host=host, **hosted)

    def begin_generation(self, state: Any, generation: int) -> Any:
        """The state at the beginning of a session generation, which resets the machines."""
        requested = state.requested_run_id
        initial = replace(self.initial_state, generation=generation, requested_run_id=requested)
        return self.with_host(initial, state.host)


def _to_requested_effect(effect: TransitionEffect) -> RequestedEffect:
    name = str(effect.__struct_config__.tag)
    return RequestedEffect(name=name, fields=msgspec.structs.asdict(effect))
