"""The tools of the examples, together: some only read, and one pays once it is approved."""

from __future__ import annotations

from rookery.actors.tools import ToolRegistry
from rookery.ops.examples.approval.tools import pay
from rookery.ops.examples.tools import price, stock, weather

__all__ = ["registry"]

registry = ToolRegistry.of(price, weather, stock, pay)
