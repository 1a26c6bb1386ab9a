"""What the kernel reports to a metrics library. The kernel itself imports none."""

from __future__ import annotations

from typing import Protocol

__all__ = ["KernelMetrics", "NoMetrics"]


class KernelMetrics(Protocol):
    """Called from actor threads and from the bus's loop; must be fast and must not raise."""

    def command(self, verb: str, outcome: str, seconds: float) -> None:
        """A command ended: ``committed``, ``unchanged``, ``repeated``, ``refused`` or
        ``overloaded`` (the actor had reached its limit)."""

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None:
        """Messages of a family became durable ``seconds`` after they were decided."""

    def conflict(self, family: str) -> None:
        """An append conflicted with another writer and is decided again."""

    def quarantined(self, verb: str) -> None:
        """A command made its actor fail three times and was set aside."""

    def restarted(self, actor: str) -> None:
        """An actor failed and started again from the journal."""


class NoMetrics:
    """Discards everything."""

    def command(self, verb: str, outcome: str, seconds: float) -> None: ...

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None: ...

    def conflict(self, family: str) -> None: ...

    def quarantined(self, verb: str) -> None: ...

    def restarted(self, actor: str) -> None: ...
