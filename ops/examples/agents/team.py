"""An agent beside the tools of a shop: models and programs call it as they call any tool."""

from __future__ import annotations

from rookery.actors import agent
from rookery.actors.tools import ToolRegistry
from rookery.ops.examples.tools import registry as shop

__all__ = ["registry"]


@agent(tools=["price"], limits={"turns": 5})
def pricer(item: str) -> str:
    """Says what an item costs, in a sentence."""
    return f"You look up what {item} costs, and say so in one sentence."


registry = ToolRegistry.of(*shop, pricer)
