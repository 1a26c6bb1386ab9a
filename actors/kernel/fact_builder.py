"""``FactBuilder``: the facts of one decision, each folded before the next is decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rookery.schemas.envelope import Fact

__all__ = ["FactBuilder"]

S = TypeVar("S")
F = TypeVar("F", bound=Fact)


class FactBuilder(Generic[S, F]):
    """The facts of one decision and the state after them. Deciders subclass it with one method per
    step of their decisions. The builder is pure: the kernel commits ``facts``."""

    def __init__(self, state: S, evolve: Callable[[S, Any], S]) -> None:
        self.state = state
        """The state after all facts added so far."""
        self.facts: list[F] = []
        self._evolve = evolve

    def add(self, fact: F) -> F:
        """Append a new fact and fold it."""
        self.facts.append(fact)
        self.state = self._evolve(self.state, fact)
        return fact
