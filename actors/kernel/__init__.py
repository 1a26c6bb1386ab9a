"""The kernel: turns the pure rules of a decider into an actor. It contains no decider's rules.

The names here are what the author of a decider needs. ``effects`` is for executors, ``runtime`` for
what wires a node; ``entities`` is the inside of an actor, and ``machines`` the tables of machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.kernel.decider import Decider, Effect, FactBuilder, FoldedFacts, ReadScope

__all__ = ["Decider", "Effect", "FactBuilder", "FoldedFacts", "ReadScope"]

__getattr__ = lazy_names(
    __name__,
    {
        "decider": (
            "Decider",
            "Effect",
            "FactBuilder",
            "FoldedFacts",
            "ReadScope",
        ),
    },
)
