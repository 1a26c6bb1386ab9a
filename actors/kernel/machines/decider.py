"""``MachineDecider``: a decider whose rules are state machines; each machine input is a command.

It finds the machine of an input, folds the machines' facts, builds the replies, and follows the
session's host from admission's facts. A subclass lists its machines, their views and the facts that
must be fenced.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.machines.machine import Machine, TransitionEffect, TransitionRejected
from rookery.actors.kernel.machines.session_host import SessionHost
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.machines.views import RequestedEffect

__all__ = ["MachineBinding", "MachineDecider", "SessionMachineDecider", "SessionMachineState"]

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
            return self.decide_input(state, command.key, on, params)
        if unknown := sorted(params.keys() - set(read.read_params)):
            raise Refused("UNKNOWN_FIELD", f"{on} has no parameter {unknown[0]!r}")
        return ()

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

    def _binding(self, on: str) -> MachineBinding:
        binding = self._inputs.get(on)
        if binding is None:
            known = ", ".join(sorted([*self._inputs, *self._reads]))
            reason = f"no machine of {self.family} has an input {on[:80]!r}"
            raise TransitionRejected(f"{self.family}::{on[:80]}", reason, hint=f"known: {known}")
        return binding


class SessionMachineState(msgspec.Struct, frozen=True, kw_only=True):
    """What every decider of session machines keeps beside their states."""

    host: SessionHost = SessionHost()
    """The host, from admission's facts received so far."""
    generation: int = 1
    """The session generation of the machines' states; a new generation resets them."""


class SessionMachineDecider(MachineDecider):
    """The rules of a family whose machines read their session's host.

    Facts of the family and of admission may be folded in any order: a machine's state depends on
    the host only where it *is* the host, and each fact names its session generation.
    """

    observes = frozenset({"session"})
    initial_state: SessionMachineState

    def __init__(self) -> None:
        super().__init__()
        fields = [binding.field for binding in self.bindings]
        self._hosted_fields = [f for f in fields if hasattr(getattr(self.initial_state, f), "host")]

    @abstractmethod
    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        """The host after a fact of admission."""

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
        return self.with_host(state, self.evolve_host(state.host, fact))

    def with_host(self, state: Any, host: SessionHost) -> Any:
        """The state with ``host`` set in it and in every machine's state."""
        hosted = {f: replace(getattr(state, f), host=host) for f in self._hosted_fields}
        return replace(state, host=host, **hosted)

    def begin_generation(self, state: Any, generation: int) -> Any:
        """The state at the beginning of a session generation, which resets the machines."""
        return self.with_host(replace(self.initial_state, generation=generation), state.host)


def _to_requested_effect(effect: TransitionEffect) -> RequestedEffect:
    name = str(effect.__struct_config__.tag)
    return RequestedEffect(name=name, fields=msgspec.structs.asdict(effect))
