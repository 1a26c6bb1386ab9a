"""What executors of effects, and handlers of queries, share with the actors of their node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.kernel.executors.asks import (
        AskActor,
        EffectHandler,
        NotExecutableHere,
        QueryHandler,
    )
    from rookery.actors.kernel.executors.failpoints import Failpoints

__all__ = ["AskActor", "EffectHandler", "Failpoints", "NotExecutableHere", "QueryHandler"]

__getattr__ = lazy_names(
    __name__,
    {
        "asks": (
            "AskActor",
            "EffectHandler",
            "NotExecutableHere",
            "QueryHandler",
        ),
        "failpoints": ("Failpoints",),
    },
)
