"""Waiting for a condition, with a deadline instead of a fixed pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def wait_until(condition: Callable[[], T], deadline_s: float = 90.0) -> T:
    """The first true value of ``condition``; the loop runs meanwhile."""
    async with asyncio.timeout(deadline_s):
        while not (value := condition()):
            await asyncio.sleep(0.002)
    return value
