"""What the kernel tells whoever measures it. The kernel knows no metrics library."""

from __future__ import annotations

from typing import Protocol

__all__ = ["KernelMetrics", "NoMetrics"]


class KernelMetrics(Protocol):
    """Called from actor threads and from the bus's loop; must be quick and must not raise."""

    def command(self, verb: str, outcome: str, seconds: float) -> None:
        """A command was answered: ``committed``, ``unchanged``, ``repeated``, ``refused``, or
        ``overloaded``, if there was no room to take it in..."""

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None:
        """Messages of a family became durable, ``seconds`` after they were handed over."""

    def conflict(self, family: str) -> None:
        """An append lost against another writer and is decided again."""

    def quarantined(self, verb: str) -> None:
        """A command made its actor fail three times and was set aside."""

    def restarted(self, actor: str) -> None:
        """An actor failed and started again from the journal."""


class NoMetrics:
    """Nobody measures."""

    def command(self, verb: str, outcome: str, seconds: float) -> None: ...

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None: ...

    def conflict(self, family: str) -> None: ...

    def quarantined(self, verb: str) -> None: ...

    def restarted(self, actor: str) -> None: ...
