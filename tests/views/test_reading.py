"""Reading a journal on: each message once, in order, without holding up the loop or giving up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from rookery.actors.views import reading
from rookery.actors.views.reading import SLICE_MESSAGES, Reading
from rookery.bus.ports import Filter, Stored
from rookery.schemas.errors import Failed
from tests.views.telling import Story


def test_each_message_is_taken_once_however_many_ask_at_the_same_time():
    story, taken = Story(), list[int]()
    reader = Reading(story, Filter(), lambda stored: taken.append(stored.sequence))

    async def ask() -> None:
        story.run("s", "r1")
        await asyncio.gather(*(reader.refresh() for _ in range(5)))
        story.run("s", "r2")
        await asyncio.gather(*(reader.refresh() for _ in range(5)))

    asyncio.run(ask())
    assert taken == list(range(1, len(story.messages) + 1))


def test_others_get_the_loop_while_much_is_read():
    story, turns = Story(), 0
    for _ in range(4 * SLICE_MESSAGES):
        story.write("session", "s", b"[]")

    async def ask() -> None:
        nonlocal turns
        reader = Reading(story, Filter(), lambda _: None)
        asked = asyncio.create_task(reader.refresh())
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(ask())
    assert turns >= 4


class Outage(Story):
    """A journal that cannot be read at first."""

    outages = 2

    async def scan(self, where: Filter, after: int = 0) -> AsyncGenerator[list[Stored], None]:
        if self.outages:
            self.outages -= 1
            raise Failed("SERVER_UNREACHABLE", "gone")
        async for page in super().scan(where, after):
            yield page


def test_keeping_up_outlives_an_outage(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "KEEP_UP_S", 0.001)
    story = Outage()
    story.run("s", "r")

    async def keep_up() -> None:
        everything = asyncio.Event()

        def take(stored: Stored) -> None:
            if stored is story.messages[-1]:
                everything.set()

        keeping = asyncio.create_task(Reading(story, Filter(), take).keep_up())
        async with asyncio.timeout(10):
            await everything.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(keep_up())
