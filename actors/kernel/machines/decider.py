"""A concern made of machines: every input of theirs is a command, decided by their rows.

What such concerns share: which machine an input is for, what its fact makes of the state, how it is
answered, and a session's host followed from admission's facts. What a machine's state looks like
from outside, and which facts are fenced, is said by each concern; rules are the machines'.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.machines.machine import Machine, TransitionEffect, TransitionRejected
from rookery.actors.kernel.machines.session_host import SessionHost, with_host
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.machines.views import RequestedEffect

__all__ = ["MachineBinding", "MachineDecider", "SessionMachineDecider", "SessionMachineState"]

Params = Mapping[str, Any]


class MachineBinding(NamedTuple):
    """One of a concern's machines."""

    machine: Machine[Any]
    field: str
    """Where the concern's state keeps the machine's."""
    view: Callable[[Any, Params], msgspec.Struct]
    """The machine's state for whoever asked with these parameters; it has room for effects."""
    reads: tuple[str, ...] = ()
    """Methods of the handle that only look; they are answered the same."""
    read_params: tuple[str, ...] = ()


class MachineDecider(Decider):
    """The rules of a family whose facts are transitions of machines."""

    bindings: ClassVar[tuple[MachineBinding, ...]]
    fenced_facts: tuple[type[Fact], ...] = ()
    """Facts that may only be committed while no other family of the key has unseen facts."""

    def __init__(self) -> None:
        machines = [(part, part.machine.inputs) for part in self.bindings]
        self._inputs = {on: part for part, inputs in machines for on in inputs}
        self._reads = {on: part for part in self.bindings for on in part.reads}
        self._by_fact = {asked.fact: part for part, inputs in machines for asked in inputs.values()}
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
        """What follows from an input, or its rejection."""
        del key
        part = self._binding(on)
        draft = self.fill_in(state, part, part.machine.candidate(on, params))
        fact: Fact = part.machine.decide(getattr(state, part.field), on, draft)
        return (fact,)

    def fill_in(self, state: Any, part: MachineBinding, draft: Any) -> Any:
        """The draft with what its caller cannot know."""
        del state, part
        return draft

    def evolve(self, state: Any, fact: Any) -> Any:
        part = self._by_fact[type(fact)]
        after = part.machine.evolve(getattr(state, part.field), fact)
        return replace(state, **{part.field: after})

    def reply(
        self, state: Any, command: Command[HandleInput], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        on, params = command.body.input, command.body.params
        shown = self.view(state, on, params)
        if not facts and on not in self._reads:
            return shown
        effects = (effect for fact in facts for effect in self.requested_effects(state, fact))
        return replace(shown, effects=tuple(map(_to_requested_effect, effects)))

    def view(self, state: Any, on: str, params: Params) -> msgspec.Struct:
        """What an input, or a look, is answered: where its machine stands."""
        part = self._reads.get(on) or self._binding(on)
        return part.view(getattr(state, part.field), params)

    def requested_effects(self, state: Any, fact: Any) -> Sequence[TransitionEffect]:
        """What ``fact`` asks of the world; ``state`` is the one after it."""
        part = self._by_fact[type(fact)]
        return part.machine.effects(getattr(state, part.field), fact)

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        return any(isinstance(fact, self.fenced_facts) for fact in facts)

    def _binding(self, on: str) -> MachineBinding:
        part = self._inputs.get(on)
        if part is None:
            known = ", ".join(sorted([*self._inputs, *self._reads]))
            reason = f"no machine of {self.family} has an input {on[:80]!r}"
            raise TransitionRejected(f"{self.family}::{on[:80]}", reason, hint=f"known: {known}")
        return part


class SessionMachineState(msgspec.Struct, frozen=True, kw_only=True):
    """What every concern with machines of a session keeps beside their states."""

    host: SessionHost = SessionHost()
    """As admission's facts have left it, as far as they have come here."""
    generation: int = 1
    """Which life of the session the machines are in; with another one they begin anew."""


class SessionMachineDecider(MachineDecider):
    """The rules of a family whose machines look at their session's host.

    Facts of the family and of admission's may be folded in any order: a machine's state depends on
    the host only where it *is* the host, and each fact names the session's life it belongs to.
    """

    observes = frozenset({"session"})
    initial_state: SessionMachineState

    @abstractmethod
    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        """The host after a fact of admission."""

    def fill_in(self, state: Any, part: MachineBinding, draft: Any) -> Any:
        del part
        force_setattr(draft, "generation", state.generation)
        return draft

    def evolve(self, state: Any, fact: Any) -> Any:
        return super().evolve(self._in_generation(state, fact.generation), fact)

    def observe(self, state: Any, fact: Any) -> Any:
        state = self._in_generation(state, fact.generation)
        return self.with_host(state, self.evolve_host(state.host, fact))

    def with_host(self, state: Any, host: SessionHost) -> Any:
        """The state with the host, and every machine's, at ``host``."""
        fields = [part.field for part in self.bindings if part.field != "host"]
        return replace(state, host=host, **{f: with_host(getattr(state, f), host) for f in fields})

    def _in_generation(self, state: Any, generation: int) -> Any:
        if generation <= state.generation:
            return state
        return self.with_host(replace(self.initial_state, generation=generation), state.host)


def _to_requested_effect(effect: TransitionEffect) -> RequestedEffect:
    name = str(effect.__struct_config__.tag)
    return RequestedEffect(name=name, fields=msgspec.structs.asdict(effect))
