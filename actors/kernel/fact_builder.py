"""``FactBuilder``: the facts of one decision, each folded before the next is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import force_setattr

from rookery.schemas.envelope import Fact

__all__ = ["FactBuilder", "FoldedFacts"]

S = TypeVar("S")
F = TypeVar("F", bound=Fact)


class FoldedFacts(list[Fact]):
    """Facts and the state after them: the kernel does not fold them again. So no fold of them may
    read what the kernel fills in (``fill_envelope``)."""

    def __init__(self, facts: Iterable[Fact], state: Any) -> None:
        super().__init__(facts)
        self.state = state


class FactBuilder(Generic[S, F]):
    """The facts of one decision and the state after them. Deciders subclass it with one method per
    step of their decisions. The builder is pure: the kernel commits ``facts``.

    A fact is folded when the state is read, so the last facts of a decision are not folded here.
    """

    def __init__(self, state: S, evolve: Callable[[S, Any], S], facts: Sequence[F] = ()) -> None:
        """``state``: after ``facts``."""
        self.facts: list[F] = list(facts)
        self._folded = len(self.facts)
        self._before = self._state = state
        self._evolve = evolve

    @property
    def state(self) -> S:
        """The state after all facts added so far."""
        while self._folded < len(self.facts):
            self._before, fact = self._state, self.facts[self._folded]
            self._state = self._evolve(self._state, fact)
            self._folded += 1
        return self._state

    def add(self, fact: F) -> F:
        """Append a new fact."""
        self.facts.append(fact)
        return fact

    def amend(self, **fields: Any) -> None:
        """Set fields of the last fact."""
        for name, value in fields.items():
            force_setattr(self.facts[-1], name, value)
        if self._folded == len(self.facts):
            self._state, self._folded = self._before, self._folded - 1
