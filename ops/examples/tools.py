"""Three tools for trying things out: ``rookery up --tools rookery.ops.examples.tools:registry``.

A plain function is a synchronous tool, a coroutine function an awaited one. Type hints are the
schemas, and programs see the docstring.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from rookery.actors import tool
from rookery.actors.tools import ToolError, ToolRegistry

__all__ = ["price", "registry", "stock", "weather"]

PRICES = {"tea": 3, "coffee": 4, "cake": 5}
WEATHER = {"Oslo": "snow", "Lima": "sun", "Cork": "rain"}


@tool(side_effect="read")
def price(item: str) -> int:
    """What an item costs."""
    if item not in PRICES:
        raise ToolError("TOOL_ERROR", f"there is no {item}; known items: {', '.join(PRICES)}")
    return PRICES[item]


@tool(side_effect="read")
async def weather(city: str) -> str:
    """How the sky looks over a city; the answer takes a moment."""
    await asyncio.sleep(0.2)
    return WEATHER.get(city, "unknown")


@tool
def stock(item: str, count: Annotated[int, Meta(ge=0, le=100)] = 1) -> dict[str, int]:
    """An order for up to a hundred of an item."""
    return {item: count}


registry = ToolRegistry.of(price, weather, stock)
