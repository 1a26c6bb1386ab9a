"""The projector reads each message once and in order, and does not block the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.projections import projector
from rookery.actors.projections.lists.approvals import ApprovalProjection, ApprovalQueryHandler
from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.actors.projections.lists.runs import RunProjection
from rookery.actors.projections.lists.sessions import SessionProjection, SessionQueryHandler
from rookery.actors.projections.projector import SLICE_MESSAGES, Projector
from rookery.actors.projections.realm_projections import SkippedMessages
from rookery.bus.ports import Delivery, Filter, StoredMessage
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import FOREIGN_FAMILY, EntityId
from rookery.schemas.errors import Failed
from tests.projections.fact_builders import FactHistory


class Taken:
    """A table of the messages themselves."""

    name, version = "taken", "1"

    def __init__(self) -> None:
        self.taken: list[int] = []

    def apply(self, stored: StoredMessage) -> None:
        self.taken.append(stored.sequence)

    def parts(self) -> Iterator[bytes]:
        yield encode_json(self.taken)

    def empty(self) -> Taken:
        return Taken()

    def restore(self, part: bytes) -> None:
        self.taken += msgspec.json.decode(part, type=list[int])


def test_each_message_is_taken_once_however_many_ask_at_the_same_time():
    history, both = FactHistory(), (Taken(), Taken())
    reader = Projector(history, both)

    async def ask() -> None:
        history.run("s", "r1")
        await asyncio.gather(*(reader.refresh() for _ in range(5)))
        history.run("s", "r2")
        await asyncio.gather(*(reader.refresh() for _ in range(5)))

    asyncio.run(ask())
    for table in both:
        assert table.taken == list(range(1, len(history.messages) + 1))


def test_a_query_says_how_far_the_lists_are_and_the_reading_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(projector, "QUERY_S", 0.002)
    history, table = FactHistory(), Taken()
    for _ in range(200 * SLICE_MESSAGES):
        history.write("session", "s", b"[]")
    reader = Projector(history, [table])

    async def ask() -> int:
        for asked in range(10_000):
            try:
                await reader.refresh_for_query()
            except Failed as error:
                answers.append((f"{error.code} {error.message}", len(table.taken)))
            else:
                return asked
        raise AssertionError("the reading makes no progress")

    answers: list[tuple[str, int]] = []
    assert asyncio.run(ask()) > 0
    for text, taken in answers:
        assert text.startswith("LISTS_BEHIND ")
        assert f"have {taken:,} of {len(history.messages):,} messages" in text
    assert table.taken == list(range(1, len(history.messages) + 1))


def test_others_get_the_loop_while_much_is_read():
    history, turns = FactHistory(), 0
    for _ in range(4 * SLICE_MESSAGES):
        history.write("session", "s", b"[]")

    async def ask() -> None:
        nonlocal turns
        reader = Projector(history, [Taken()])
        asked = asyncio.create_task(reader.refresh())
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(ask())
    assert turns >= 4


class CountedHistory(FactHistory):
    """Counts how often its end is requested."""

    ends = 0

    async def end(self) -> int:
        self.ends += 1
        return await super().end()


@pytest.mark.parametrize(
    ("query", "handler"),
    [
        ("runs", lambda reader: RunQueryHandler(reader).handle),
        ("sessions", lambda reader: SessionQueryHandler(reader).handle),
        ("pending", lambda reader: ApprovalQueryHandler(reader, lambda: 0).handle_pending),
        ("granted", lambda reader: ApprovalQueryHandler(reader, lambda: 0).handle_granted),
    ],
)
def test_a_query_asks_once_how_long_the_journal_is(query: str, handler: Any):
    history = CountedHistory()
    history.run("s", "r1")
    reader = Projector(history, [RunProjection(), SessionProjection(), ApprovalProjection()])
    asyncio.run(handler(reader)(Delivery(verb=query, key="all", id="1", body=b"{}")))
    assert history.ends == 1


class Outage(FactHistory):
    """A journal that cannot be read at first."""

    outages = 2

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        if self.outages:
            self.outages -= 1
            raise Failed("SERVER_UNREACHABLE", "gone")
        async for page in super().scan(where, after):
            yield page


def test_keeping_up_outlives_an_outage(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(projector, "POLL_S", 0.001)
    history = Outage()
    history.run("s", "r")

    async def keep_up() -> None:
        table = Taken()
        keeping = asyncio.create_task(Projector(history, [table]).run())
        async with asyncio.timeout(10):
            while len(table.taken) < len(history.messages):
                await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(keep_up())


# --- skipped messages -----------------------------------------------------------------------------

NAMES = Path(__file__).parents[1] / "wire" / "names.txt"
SOUND = b'[{"type":"turn.started.v1"}]'


def message_of(body: bytes, family: str = "turn", chain: str = "0" * 64) -> StoredMessage:
    return StoredMessage(1, EntityId(family, "s"), "", chain, body, 0)


def skipped(stored: StoredMessage) -> int:
    table = SkippedMessages()
    table.apply(stored)
    again = table.empty()
    for part in table.parts():
        again.restore(part)
    assert again.count == table.count
    return table.count


def test_no_fact_of_the_contract_counts_as_skipped():
    lines = NAMES.read_text("utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith("fact ")]
    assert len(names) > 200
    assert [name for name in names if skipped(message_of(b'[{"type":"%b"}]' % name.encode()))] == []


@pytest.mark.parametrize(
    "foreign",
    [
        message_of(b"not json"),
        message_of(b""),
        message_of(SOUND[:-1]),
        message_of(b'[{"type":"turn.nonsense.v1"}]'),
        message_of(b"[]"),
        message_of(SOUND, family=FOREIGN_FAMILY),
        message_of(SOUND, family="nosuch"),
        message_of(SOUND, chain=""),
    ],
)
def test_what_no_reader_can_use_is_counted_until_it_is_set_aside(foreign: StoredMessage):
    assert skipped(foreign) == 1
    assert skipped(replace(foreign, body=b"[]", quarantined_through=1)) == 0
