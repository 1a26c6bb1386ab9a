"""Faults between a node and the server in memory: delayed acks, latency, outages, rival writers.

The journal behind it is the real one. A conflict is a rival's append.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from rookery.bus.memory.journal import MemoryJournal
from rookery.bus.ports import (
    AppendOutcome,
    AppendRejected,
    AppendRequest,
    Backpressure,
    Filter,
    StoredMessage,
    Superseded,
)
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

Settle = Callable[[list[AppendOutcome]], None]
Turns = Mapping[int, int]


class FaultSchedule:
    """The faults of one node; none by default."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.away = False
        """The server is unreachable: requests fail, appends wait."""
        self.up = True
        """Whether the node is alive; a dead one gets no outcome."""
        self.stray = True
        """Whether messages sent before the node's death still arrive."""
        self.pause_s: Callable[[], float] = lambda: 0.0
        """The delay of every message, reply and wake-up."""
        self.pause_back_s = 0.0
        """The additional delay of replies."""

    def later(self, call: Callable[..., object], *args: Any) -> None:
        """Call after the next delay."""
        if pause_s := self.pause_s():
            self._loop.call_later(pause_s, call, *args)
        else:
            self._loop.call_soon(call, *args)

    async def pass_through(self, *, away: bool = False) -> None:
        if pause_s := self.pause_s():
            await asyncio.sleep(pause_s)
        if self.away or away:
            raise Failed("SERVER_UNREACHABLE", "the server is away")


class Exposed:
    """A port whose requests are subject to the faults."""

    def __init__(self, port: Any, weather: FaultSchedule) -> None:
        self._port, self._weather = port, weather
        self.cut = False
        """Only this port is unreachable."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def request(*args: Any, **named: Any) -> Any:
            await self._weather.pass_through(away=self.cut)
            result = await found(*args, **named)
            await asyncio.sleep(self._weather.pause_back_s)
            return result

        return request


class ExposedJournal:
    """The journal, with one gate for appends before they are stored and one for their acks."""

    pressure = Backpressure.NONE

    def __init__(
        self, journal: MemoryJournal, weather: FaultSchedule, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._journal, self._weather, self._loop = journal, weather, loop
        self.before_append: Callable[[AppendRequest], None] = lambda append: None
        """Called before an append is stored."""
        self.bytes_max = 1 << 20
        """The server's limit: larger messages are rejected."""
        self.sent: list[AppendRequest] = []
        """All requested appends."""
        self.read_after: list[int] = []
        """The sequences after which entities were read, in order."""
        self.scanned = 0
        """The number of messages read in scans."""
        self._holding_appends: tuple[str, ...] = ()
        self._holding_acks = False
        self._may_catch_up = asyncio.Event()
        self._may_catch_up.set()
        self._unsettled: dict[str, tuple[AppendRequest, Settle]] = {}
        self._appends: list[tuple[AppendRequest, Settle, Turns]] = []
        self._acks: list[tuple[AppendOutcome, Settle]] = []

    # --- the gates ------------------------------------------------------------------------------

    def hold_appends(self, *names: str) -> None:
        """Hold back all appends of these families and keys."""
        self._holding_appends = names or ("tally", "echo", "node")

    def hold_acks(self) -> None:
        """Store everything and hold back the acks."""
        self._holding_acks = True

    def hold_catch_ups(self) -> None:
        """Hold back the facts of other families."""
        self._may_catch_up.clear()

    @property
    def held(self) -> int:
        """The number of waiting appends and acks."""
        return len(self._appends) + len(self._acks)

    def release(self) -> None:
        """Release everything, in order."""
        self._holding_appends, self._holding_acks = (), False
        self._may_catch_up.set()
        appends, self._appends = self._appends, []
        acks, self._acks = self._acks, []
        for outcome, settle in acks:
            self._settle(outcome, settle)
        for append, settle, turns in appends:
            self._store(append, settle, turns)

    # --- port Journal ---------------------------------------------------------------------------

    def append(self, appends: Sequence[AppendRequest], settle: Settle) -> None:
        self.sent += appends
        turns = self._journal.terms
        for append in appends:
            self._unsettled[append.message_id] = append, settle
            if set(self._holding_appends) & set(append.entity):
                self._appends.append((append, settle, turns))
            else:
                self._weather.later(self._store, append, settle, turns)

    async def begin_terms(self, partitions: frozenset[int]) -> dict[int, int]:
        await self._weather.pass_through()
        return await self._journal.begin_terms(partitions)

    def abandon_terms(self) -> None:
        """Messages in flight still arrive; their outcome is dropped."""
        self._journal.abandon_terms()
        for append, settle in list(self._unsettled.values()):
            if append.entity.family != "node":
                self._settle(Superseded(append), settle)

    async def last(self, entity: EntityId) -> StoredMessage | None:
        await self._weather.pass_through()
        return await self._journal.last(entity)

    async def at(self, sequence: int) -> StoredMessage | None:
        await self._weather.pass_through()
        return await self._journal.at(sequence)

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        await self._weather.pass_through()
        self.read_after.append(after)
        return await self._journal.read(entity, after)

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        await self._weather.pass_through()
        await self._may_catch_up.wait()
        return await self._journal.of_key(key, messages_max)

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        await self._weather.pass_through()
        if where.key:
            await self._may_catch_up.wait()
        async for page in self._journal.scan(where, after):
            self.scanned += len(page)
            yield page

    async def end(self) -> int:
        await self._weather.pass_through()
        return await self._journal.end()

    async def identity(self) -> str:
        await self._weather.pass_through()
        return await self._journal.identity()

    async def verified_end(self, partitions: frozenset[int]) -> int:
        await self._weather.pass_through()
        return await self._journal.verified_end(partitions)

    def _store(self, append: AppendRequest, settle: Settle, turns: Turns) -> None:
        if self._weather.away:
            self._loop.call_later(0.1, self._store, append, settle, turns)
            return
        if not (self._weather.up or self._weather.stray):
            return
        if len(append.body) > self.bytes_max:
            self._settle(
                AppendRejected(append, "PAYLOAD_TOO_LARGE", "above the server's limit"), settle
            )
            return
        self.before_append(append)

        def settled(outcomes: list[AppendOutcome]) -> None:
            for outcome in outcomes:
                if self._holding_acks:
                    self._acks.append((outcome, settle))
                else:
                    self._settle(outcome, settle)

        self._journal.append([append], settled, turns)

    def _settle(self, outcome: AppendOutcome, settle: Settle) -> None:
        if self._unsettled.pop(outcome.append.message_id, None) is not None:
            self._weather.later(self._hear, outcome, settle)

    def _hear(self, outcome: AppendOutcome, settle: Settle) -> None:
        if self._weather.up:
            settle([outcome])
